"""GPipe: all forward passes, then all backward passes."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import linear
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe("gpipe", bubble="(D - 1)/(N + D - 1)", reference="Huang et al., arXiv 1811.06965")
def gpipe(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes: simple, but every rank keeps all micro-batches."""
    order = range(num_micro_batches)
    rows = [[Action(kind, stage, each) for kind in "FB" for each in order] for stage in range(num_ranks)]
    return PipelineSchedule("gpipe", linear(num_ranks), num_micro_batches, rows)
