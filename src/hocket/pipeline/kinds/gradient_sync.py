"""The sum of a stage's gradients over all copies, and the update of its weights."""

from hocket.pipeline.kind import Field, Kind, Need, register_kind

_COPY: tuple[Field, ...] = ("step", "pipe", "stage")
# Not required: a copy without micro-batches adds nothing, but receives the sum.
_ALL_GRADIENTS = Need(("B", "W"), match=_COPY, required=False)

register_kind(
    Kind(
        "SYNC_START",
        "start to sum the gradients of a stage over its copies",
        scope="stage",
        needs=(_ALL_GRADIENTS,),
        cost="SYNC_START",
        color="#c25b78",
    )
)
register_kind(
    Kind(
        "SYNC_WAIT",
        "wait for the sum of the gradients of a stage",
        scope="stage",
        needs=(Need(("SYNC_START",), match=("step", "stage"), carries="sum"),),
        color="#8f3f59",
    )
)
register_kind(
    Kind(
        "STEP",
        "update the weights of a stage",
        scope="stage",
        needs=(_ALL_GRADIENTS, Need(("SYNC_WAIT",), match=_COPY, required=False)),
        cost="STEP",
        color="#8a6fc0",
    )
)
