"""The recomputation of a forward pass, so that its activations need not be kept."""

from hocket.pipeline.kind import Kind, Need, Stash, register_kind

register_kind(
    Kind(
        "R",
        "repeated forward pass, just before the backward pass; the first one kept only its inputs",
        needs=(Need(("F",)),),
        cost="R",
        instead=("F",),
        takes=(Stash("activation"),),
        color="#9db9e0",
        terminal_color=46,
    )
)
