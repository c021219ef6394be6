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
    """Check that a schedule can be run, and does what a training step has to.

    Args:
        schedule: to check.
        buffering: of messages between ranks: see `Buffering.parse`.
        costs: bytes of weights and activations, for the limit.
        limit_nbytes: that a rank may hold; None: as many as it likes.

    Raises:
        MisplacedAction, DuplicateAction, MissingAction: see `check_coverage`.
        IllegalOrder: see `check_order`.
        PipelineDeadlock: see `check_deadlock`.
        StashLeak, MemoryLimitExceeded: see `check_stashes` and `check_memory`.
    """
    check_coverage(schedule)
    check_order(schedule)
    check_deadlock(schedule, buffering)
    check_stashes(schedule)
    if limit_nbytes is not None:
        check_memory(schedule, costs or CostModel(), limit_nbytes)
