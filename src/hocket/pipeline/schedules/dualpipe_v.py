"""DualPipeV: DualPipe cut in half along its symmetry, with one copy of the model along a V."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules._program import Program
from hocket.pipeline.schedules.dualpipe import eight_phases


@recipe(
    "dualpipe-v",
    bubble="(D - 1)(F&B + B - 3W) in time, stages of half the size",
    reference="DeepSeek-AI, DualPipe (2025); Qi et al., cut in half",
)
def dualpipe_v(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """The overlap of DualPipe with one copy of the model: two stages per rank along a V."""
    rows = [_rank(num_ranks, num_micro_batches, rank) for rank in range(num_ranks)]
    return PipelineSchedule("dualpipe-v", zigzag(num_ranks, 2), num_micro_batches, rows)


def _rank(num_ranks: int, num_micro_batches: int, rank: int) -> list[Action]:
    enough = max(num_micro_batches, 2 * num_ranks)
    down, up = (rank, 0), (2 * num_ranks - 1 - rank, 0)
    return eight_phases(Program(range(num_micro_batches)), down, up, num_ranks, enough - 2 * num_ranks)
