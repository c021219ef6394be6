"""The backward pass of a stage, whole (B) or split into the gradient of its inputs (I) and of its weights (W).

The previous stage depends only on I, so W may be deferred (Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism",
arXiv 2401.10241). Activations are kept until W.
"""

from hocket.pipeline.kind import Kind, Need, Stash, register_kind

_NEEDS = (
    Need(("F",)),
    Need(("B", "I"), stages="outputs", carries="gradient"),
    Need(("RECV_B",), required=False),
    Need(("R",), required=False),
)
_KEPT = (Stash("activation"), Stash("input", only_with="R"))

register_kind(
    Kind(
        "B",
        "backward pass",
        needs=_NEEDS,
        cost="B",
        instead=("I", "W"),
        frees=_KEPT,
        color="#e2955a",
        terminal_color=43,
    )
)
register_kind(
    Kind(
        "I",
        "backward pass, only the gradient of the inputs",
        needs=_NEEDS,
        cost="I",
        takes=(Stash("output_gradient"),),
        color="#e2b15a",
        terminal_color=43,
    )
)
register_kind(
    Kind(
        "W",
        "backward pass, only the gradient of the weights",
        needs=(Need(("I",)),),
        cost="W",
        frees=(*_KEPT, Stash("output_gradient")),
        color="#6fb98a",
        terminal_color=42,
    )
)
