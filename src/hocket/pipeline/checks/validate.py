"""All checks of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.checks.coverage import check_coverage
from hocket.pipeline.checks.deadlock import check_deadlock
from hocket.pipeline.checks.memory import check_memory, check_stashes
from hocket.pipeline.checks.order import check_order
from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule


def validate(
    schedule: PipelineSchedule,
    *,
    buffering: Buffering | str | int = TAGGED,
    costs: CostModel | None = None,
    limit_nbytes: float | Sequence[float] | None = None,
) -> None:
    """Check that a schedule is a complete training step and runs without deadlock.

    Args:
        schedule: schedule to check.
        buffering: buffering of messages between ranks: see `Buffering.parse`.
        costs: bytes of weights and activations, for the limit.
        limit_nbytes: memory limit of a rank; None: unlimited.

    Raises:
        MisplacedAction, DuplicateAction, MissingAction: see `check_coverage`.
        IllegalOrder: see `check_order`.
        PipelineDeadlock: see `check_deadlock`.
        StashLeak, MemoryLimitExceeded: see `check_stashes` and `check_memory`.

    Examples:
        >>> schedule = hk.pipeline.build("1f1b", 2, 4)
        >>> hk.pipeline.validate(schedule)
        >>> hk.pipeline.validate(schedule.with_actions([schedule.actions[0][:-1], schedule.actions[1]]))
        Traceback (most recent call last):
        hocket.errors.MissingAction: micro-batch 3 has no B, or I and W, at stage 0; ...
    """
    check_coverage(schedule)
    check_order(schedule)
    check_deadlock(schedule, buffering)
    check_stashes(schedule)
    if limit_nbytes is not None:
        check_memory(schedule, costs or CostModel(), limit_nbytes)
