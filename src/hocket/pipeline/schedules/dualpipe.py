"""DualPipe: micro-batches from both ends, whose forward and backward passes overlap on every rank.

The eight phases of a rank, with the pipe that begins nearer to it as the near one:
F near; F near and F far; I, W and F far; the steady state; B and F&B of what is left; backward passes of both, the
second half of them in two parts; the weight gradients that were kept, between the last gradients that other ranks
wait for; and the rest of them.
"""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import bidirectional
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules._program import Program


@recipe(
    "dualpipe",
    bubble="(D/2 - 1)(F&B + B - 3W) of the time, F&B that of both together",
    reference="DeepSeek-AI, arXiv 2412.19437, section 3.2.1",
    restriction=lambda num_ranks, num_micro_batches, **_: (
        "the number of ranks (D) has to be even" if num_ranks % 2 else None
    ),
)
def dualpipe(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Two copies of the model in opposite directions; forward passes overlap with backward passes of the other."""
    rows = [_rank(num_ranks, num_micro_batches, rank) for rank in range(num_ranks)]
    return PipelineSchedule("dualpipe", bidirectional(num_ranks), num_micro_batches, rows)


def _rank(num_ranks: int, num_micro_batches: int, rank: int) -> list[Action]:
    half = (num_micro_batches + 1) // 2
    near, far = sorted(zip((rank, num_ranks - 1 - rank), (0, 1), strict=True))
    program = Program(range(half), range(half, num_micro_batches))
    return eight_phases(program, near, far, num_ranks // 2, max(half, num_ranks) - num_ranks)


def eight_phases(
    program: Program, near: tuple[int, int], far: tuple[int, int], num_depths: int, further: int
) -> list[Action]:
    """Return the actions of a rank.

    Args:
        program: to write them into.
        near, far: stage and pipe that a micro-batch of the rank's own end comes to first, and last.
        num_depths: ranks between an end and where both directions meet; the stage of `near` is this one's.
        further: micro-batches of a direction beyond those that fill the pipeline.
    """
    depth = near[0]
    inner = num_depths - 1 - depth
    for _ in range(2 * inner):
        program.add("F", *near)
    for _ in range(depth + 1):
        program.add("F", *near)
        program.add("F", *far)
    for _ in range(inner):
        program.add("I", *far)
        program.add_weights()
        program.add("F", *far)
    for turn in range(further + depth + 1):
        if turn == 0 and inner == 0:  # apart, so that the gradient leaves sooner
            program.add("F", *near)
            program.add("B", *far)
        else:
            program.overlap(near, far)
        program.overlap(far, near)
    for _ in range(inner):
        program.add("B", *far)
        program.overlap(far, near)
    kind = "B"
    for turn in range(depth + 1):
        for place, passes in enumerate((far, near)):
            if turn == (depth + 1) // 2 and place == 1 - depth % 2:  # from here on weight gradients are kept
                kind = "I"
            program.add(kind, *passes)
    for _ in range(inner):
        program.add_weights()
        program.add("I", *near)
    program.add_weights(depth + 1)
    return program.actions
