"""ZB-V: two stages per rank along a V, so that the rank that starts a micro-batch also ends it."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules._program import Program


@recipe(
    "zb-v",
    bubble="0 of the span, where F = I = W and N is 2D - 1 or more",
    reference="Qi, Wan, Huang and Lin, arXiv 2401.10241, section 6",
)
def zb_v(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Split backward passes on two stages per rank: the memory of 1F1B, and no bubbles within the span."""
    rows = [_rank(num_ranks, num_micro_batches, rank) for rank in range(num_ranks)]
    return PipelineSchedule("zb-v", zigzag(num_ranks, 2), num_micro_batches, rows)


def _rank(num_ranks: int, num_micro_batches: int, rank: int) -> list[Action]:
    down, up = rank, 2 * num_ranks - 1 - rank
    enough = max(num_micro_batches, 2 * num_ranks - 1)
    program = Program(range(num_micro_batches))
    num_started = 2 * (num_ranks - rank) - 1
    for _ in range(num_started):  # until the first micro-batch returns on the way up
        program.add("F", down)
    for _ in range(rank):
        program.add("F", up)
        program.add("F", down)
    for _ in range(num_ranks - rank):  # the first gradients
        program.add("FI", up)
        program.add_weights(stage=up)
    for _ in range(enough - num_ranks):
        if num_started + rank < enough:
            num_started += 1
            program.add("F", down)
        program.add("I", down)
        program.add_weights(stage=down)
        program.add("FI", up)
        program.add_weights(stage=up)
    for _ in range(rank):  # other ranks wait for these gradients
        program.add("I", down)
        program.add("I", up)
    for _ in range(num_ranks - rank):
        program.add("I", down)
        program.add_weights(stage=down)
    program.add_weights(enough, stage=up)
    program.add_weights(enough, stage=down)
    return program.actions
