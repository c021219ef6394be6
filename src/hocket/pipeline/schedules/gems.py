"""GEMS: two copies of the model in opposite directions, and no more than one micro-batch kept a rank."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import bidirectional
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "gems",
    bubble="about (D - 1)/(D + 1/2)",
    reference="Jain et al., SC 2020 (GEMS); arXiv 2107.06925, table 2",
    restriction=lambda num_ranks, num_micro_batches, **_: (
        "the number of ranks (D) has to be even" if num_ranks % 2 else None
    ),
)
def gems(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """The forward pass of a micro-batch follows the backward pass of the one before: least memory, most bubbles."""
    placement = bidirectional(num_ranks)
    rows = []
    for rank in range(num_ranks):
        stages = [pipe.index(rank) for pipe in placement.ranks]
        rows.append(
            [Action(kind, stages[each % 2], each, pipe=each % 2) for each in range(num_micro_batches) for kind in "FB"]
        )
    return PipelineSchedule("gems", placement, num_micro_batches, rows)
