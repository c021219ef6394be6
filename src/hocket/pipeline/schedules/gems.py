"""GEMS: two copies of the model in opposite directions, and at most one micro-batch kept per rank."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import bidirectional
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "gems",
    bubble="about (D - 1)/(D + 1/2)",
    reference="Jain et al., SC 2020 (GEMS); arXiv 2107.06925, table 2",
    restriction=lambda num_ranks, num_micro_batches, **_: (
        f"the number of ranks (D) must be even, got {num_ranks}" if num_ranks % 2 else None
    ),
)
def gems(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Each micro-batch starts after the backward pass of the previous one: least memory, most bubbles."""
    placement = bidirectional(num_ranks)
    rows = []
    for rank in range(num_ranks):
        stages = [pipe.index(rank) for pipe in placement.ranks]
        rows.append(
            [
                Action(kind, stages[index % 2], index, pipe=index % 2)
                for index in range(num_micro_batches)
                for kind in "FB"
            ]
        )
    return PipelineSchedule("gems", placement, num_micro_batches, rows)
