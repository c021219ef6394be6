"""Interleaved 1F1B: several stages a rank, each smaller, so that the pipeline fills sooner."""

from collections.abc import Iterator

from hocket.pipeline.action import Action
from hocket.pipeline.placement import looped
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "interleaved",
    bubble="(D - 1)/(vN + D - 1), v stages a rank",
    reference="Narayanan et al., arXiv 2104.04473, section 2.2",
    choices={"num_loops": (3, 4)},
)
def interleaved(num_ranks: int, num_micro_batches: int, num_loops: int = 2) -> PipelineSchedule:
    """v stages a rank: bubbles are a v-th as long as those of 1F1B, for v times the messages.

    Micro-batches go in groups of D. Where the last group lacks some, its table is that of a whole one without them.
    """
    whole = -(-num_micro_batches // num_ranks) * num_ranks
    rows = []
    for rank in range(num_ranks):
        stages = [rank + loop * num_ranks for loop in range(num_loops)]
        forward = [Action("F", *each) for each in _in_groups(num_ranks, whole, stages)]
        backward = [Action("B", *each) for each in _in_groups(num_ranks, whole, stages[::-1])]
        warm_up = min(len(forward), (num_loops - 1) * num_ranks + 2 * (num_ranks - 1 - rank))
        pairs = zip(forward[warm_up:], backward, strict=False)
        in_turn = [action for pair in pairs for action in pair]
        actions = forward[:warm_up] + in_turn + backward[len(forward) - warm_up :]
        rows.append([action for action in actions if action.micro_batch < num_micro_batches])
    return PipelineSchedule("interleaved", looped(num_ranks, num_loops), num_micro_batches, rows)


def _in_groups(num_ranks: int, num_micro_batches: int, stages: list[int]) -> Iterator[tuple[int, int]]:
    """As many micro-batches as there are ranks go through one stage after the other, and then the next ones do."""
    for first in range(0, num_micro_batches, num_ranks):
        for stage in stages:
            for micro_batch in range(first, first + num_ranks):
                yield stage, micro_batch
