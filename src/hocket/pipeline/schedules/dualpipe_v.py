"""DualPipeV: DualPipe cut in half along its symmetry; one copy of the model along a V."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules._program import Program
from hocket.pipeline.schedules.dualpipe import add_last_backward_passes


@recipe(
    "dualpipe-v",
    bubble="(D - 1)(F&B + B - 3W) of the time, of half as large stages",
    reference="DeepSeek-AI, DualPipe (2025); Qi et al., cut in half",
)
def dualpipe_v(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """DualPipe's overlap with one copy of the model: two stages a rank along a V."""
    rows = [_rank(num_ranks, num_micro_batches, rank) for rank in range(num_ranks)]
    return PipelineSchedule("dualpipe-v", zigzag(num_ranks, 2), num_micro_batches, rows)


def _rank(num_ranks: int, num_micro_batches: int, rank: int) -> list[Action]:
    enough = max(num_micro_batches, 2 * num_ranks)
    program = Program(range(num_micro_batches))
    down, up = (rank, 0), (2 * num_ranks - 1 - rank, 0)
    inner = num_ranks - 1 - rank
    for _ in range(2 * inner):
        program.add("F", *down)
    for _ in range(rank + 1):
        program.add("F", *down)
        program.add("F", *up)
    for _ in range(inner):
        program.add("I", *up)
        program.add_weights()
        program.add("F", *up)
    for turn in range(enough - 2 * num_ranks + rank + 1):
        if turn == 0 and rank == num_ranks - 1:  # apart, so that the gradient leaves sooner
            program.add("F", *down)
            program.add("B", *up)
        else:
            program.overlap(down, up)
        program.overlap(up, down)
    for _ in range(inner):
        program.add("B", *up)
        program.overlap(up, down)
    add_last_backward_passes(program, down, up, rank, inner)
    return program.actions
