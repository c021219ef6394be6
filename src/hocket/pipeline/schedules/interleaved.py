"""Interleaved 1F1B: several smaller stages per rank, so that the pipeline fills faster."""

from collections.abc import Iterator

from hocket.pipeline.action import Action
from hocket.pipeline.placement import looped
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "interleaved",
    bubble="(D - 1)/(vN + D - 1), v stages per rank",
    reference="Narayanan et al., arXiv 2104.04473, section 2.2",
    choices={"num_loops": (3, 4)},
)
def interleaved(num_ranks: int, num_micro_batches: int, num_loops: int = 2) -> PipelineSchedule:
    """v stages per rank: bubbles are 1/v of those of 1F1B, with v times as many messages.

    Micro-batches run in groups of D. An incomplete last group uses the table of a complete one, without the missing
    micro-batches.
    """
    num_padded = -(-num_micro_batches // num_ranks) * num_ranks
    rows = []
    for rank in range(num_ranks):
        stages = [rank + loop * num_ranks for loop in range(num_loops)]
        forward = [Action("F", *each) for each in _in_groups(num_ranks, num_padded, stages)]
        backward = [Action("B", *each) for each in _in_groups(num_ranks, num_padded, stages[::-1])]
        warm_up = min(len(forward), (num_loops - 1) * num_ranks + 2 * (num_ranks - 1 - rank))
        pairs = zip(forward[warm_up:], backward, strict=False)
        alternating = [action for pair in pairs for action in pair]
        actions = forward[:warm_up] + alternating + backward[len(forward) - warm_up :]
        rows.append([action for action in actions if action.micro_batch < num_micro_batches])
    return PipelineSchedule("interleaved", looped(num_ranks, num_loops), num_micro_batches, rows)


def _in_groups(num_ranks: int, num_micro_batches: int, stages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch): each group of `num_ranks` micro-batches passes all stages before the next group."""
    for first in range(0, num_micro_batches, num_ranks):
        for stage in stages:
            for micro_batch in range(first, first + num_ranks):
                yield stage, micro_batch
