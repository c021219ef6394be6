"""The forward pass of a stage."""

from hocket.pipeline.kind import Kind, Need, Stash, register_kind

register_kind(
    Kind(
        "F",
        "forward pass; keeps activations for the backward pass, or only its inputs if they are recomputed",
        needs=(
            Need(("F",), stages="inputs", carries="activation"),
            Need(("RECV_F",), required=False),
            Need(("STEP",), match=("step", "pipe", "stage"), steps_before=1, required=False),
        ),
        cost="F",
        takes=(Stash("activation", unless="R"), Stash("input", only_with="R")),
        is_of_forward=True,
        color="#5b8fd6",
        terminal_color=44,
    )
)
