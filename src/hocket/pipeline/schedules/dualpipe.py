"""DualPipe: micro-batches start at both ends, and their forward and backward passes overlap on every rank.

The near pipe of a rank is the one that starts closer to it. Each rank has eight phases:

1. F near
2. F near and F far
3. I, W and F far
4. the steady state: F&B of both pipes
5. B far, and F far overlapped with B near
6. B of both pipes, the second half of them split, with deferred weight gradients
7. deferred weight gradients in turn with the last I that other ranks wait for
8. the remaining weight gradients
"""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import bidirectional
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules._program import Program


@recipe(
    "dualpipe",
    bubble="(D/2 - 1)(F&B + B - 3W) in time, F&B both overlapped",
    reference="DeepSeek-AI, arXiv 2412.19437, section 3.2.1",
    restriction=lambda num_ranks, num_micro_batches, **_: (
        f"the number of ranks (D) must be even, got {num_ranks}" if num_ranks % 2 else None
    ),
)
def dualpipe(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Two copies of the model in opposite directions; forward passes of one overlap with backward ones of the other."""
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
        program: program to append to.
        near, far: (stage, pipe) of the rank in the pipe that starts closer to it, and in the other one.
        num_depths: ranks from an end to the middle of the pipeline; the stage of `near` is the depth of this rank.
        further: micro-batches per direction beyond those that fill the pipeline.
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
    for index in range(further + depth + 1):
        if index == 0 and inner == 0:  # not overlapped, so that the gradient is sent earlier
            program.add("F", *near)
            program.add("B", *far)
        else:
            program.overlap(near, far)
        program.overlap(far, near)
    for _ in range(inner):
        program.add("B", *far)
        program.overlap(far, near)
    kind = "B"
    for index in range(depth + 1):
        for place, passes in enumerate((far, near)):
            if index == (depth + 1) // 2 and place == 1 - depth % 2:  # from here on, defer weight gradients
                kind = "I"
            program.add(kind, *passes)
    for _ in range(inner):
        program.add_weights()
        program.add("I", *near)
    program.add_weights(depth + 1)
    return program.actions
