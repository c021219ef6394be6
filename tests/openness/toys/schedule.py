"""A schedule that runs micro-batches in sequence."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import linear
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe("toy", bubble="1 - 1/D", reference="none")
def toy(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Each micro-batch runs forward and backward before the next one."""
    rows = [[Action(kind, stage, each) for each in range(num_micro_batches) for kind in "FB"]
            for stage in range(num_ranks)]  # fmt: skip
    return PipelineSchedule("toy", linear(num_ranks), num_micro_batches, rows)
