"""The forward pass once more, so that what it computes need not be kept from the first time on."""

from hocket.pipeline.kind import Kind, Need, Stash, register_kind

register_kind(
    Kind(
        "R",
        "forward pass again, just before the backward pass; the first one kept its inputs alone",
        needs=(Need(("F",)),),
        cost="R",
        instead=("F",),
        takes=(Stash("activation"),),
        color="#9db9e0",
        terminal_color=46,
    )
)
