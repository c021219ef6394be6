"""A list schedule for any placement."""

from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.placement import Placement, bidirectional, linear, looped, zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.schedules.chimera import deal

PLACEMENTS = ("linear", "looped", "zigzag", "bidirectional")
BACKWARD = ("whole", "split")


def _restriction(
    num_ranks: int, num_micro_batches: int, *, placement: str, per_rank: int, backward: str, most_kept: int | None
) -> str | None:
    if placement not in PLACEMENTS:
        return f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}"
    if backward not in BACKWARD:
        return f"backward must be {' or '.join(BACKWARD)}, got {backward!r}"
    if placement == "bidirectional" and (num_ranks % 2 or num_ranks // 2 % per_rank):
        return (
            f"pipes in both directions need an even D, got {num_ranks}, and a per_rank that divides D/2, got {per_rank}"
        )
    return None


@recipe(
    "list",
    bubble="by simulation, beside a lower bound",
    reference="list scheduling, Graham 1969",
    restriction=_restriction,
    choices={"placement": ("zigzag",), "backward": ("split",)},
)
def list_scheduled(
    num_ranks: int,
    num_micro_batches: int,
    placement: str = "linear",
    per_rank: int = 2,
    backward: str = "whole",
    most_kept: int | None = None,
) -> PipelineSchedule:
    """The fastest of several list schedules for a placement, for F = 1 and B = 2, or I = W = 1.

    `per_rank` is the number of stages per rank (looped, zigzag), or of pairs of pipes (bidirectional); `most_kept` is
    the maximum number of activations on a rank, unlimited by default.
    """
    chosen = _place(placement, num_ranks, per_rank)
    micro_batches = deal(range(num_micro_batches), chosen.num_pipes)
    return search_list_schedule(
        chosen, micro_batches, rule=Rule(most_kept=most_kept, splits_backward=backward == "split")
    )


def _place(name: str, num_ranks: int, per_rank: int) -> Placement:
    if name == "linear":
        return linear(num_ranks)
    return {"looped": looped, "zigzag": zigzag, "bidirectional": bidirectional}[name](num_ranks, per_rank)
