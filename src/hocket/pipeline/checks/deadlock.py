"""Check that ranks do not deadlock with the given message buffers."""

from __future__ import annotations

from hocket.errors import PipelineDeadlock
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.kind import kinds
from hocket.pipeline.passes.lower_messages import lower_messages
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


def check_deadlock(schedule: PipelineSchedule, buffering: Buffering | str | int = TAGGED) -> None:
    """Check that the schedule terminates, independent of times.

    Args:
        schedule: schedule to check. In a table without messages, each is assumed to be sent right after its data is
            produced, and received right before it is needed.
        buffering: see `Buffering.parse`.

    Raises:
        PipelineDeadlock: it deadlocks; the error shows the cycle and the buffers that would be enough.
        MissingAction: an action depends on one that is not in the table.
    """
    buffering = Buffering.parse(buffering)
    lowered = _with_messages(schedule, buffering)
    try:
        simulate(lowered, buffering=buffering)
    except PipelineDeadlock as deadlock:
        if buffering == TAGGED:
            raise PipelineDeadlock(f"{deadlock}\nlarger buffers do not help") from None
        raise PipelineDeadlock(f"{deadlock}\n{_advice(lowered)}") from None


def smallest_buffering(schedule: PipelineSchedule, *, tagged: bool = True) -> Buffering | None:
    """Return the smallest number of slots per channel that the schedule needs, or None if it always deadlocks.

    Args:
        schedule: schedule to check, with or without messages.
        tagged: as in `Buffering`.

    Examples:
        >>> schedule = hk.pipeline.lower_messages(hk.pipeline.build("1f1b", 4, 8))
        >>> hk.pipeline.smallest_buffering(schedule)
        Buffering(slots=1, tagged=True)
    """
    lowered = _with_messages(schedule, Buffering(1))
    most = _most_messages(lowered)
    if not _ends(lowered, Buffering(None, tagged)):
        return None
    low, high = 0, most  # no sender blocks with one slot per message
    while low < high:
        middle = (low + high) // 2
        if _ends(lowered, Buffering(middle, tagged)):
            high = middle
        else:
            low = middle + 1
    return Buffering(low, tagged)


def _with_messages(schedule: PipelineSchedule, buffering: Buffering) -> PipelineSchedule:
    has_messages = any(kinds()[name].message for name in schedule.columns.kinds)
    return schedule if has_messages or buffering == TAGGED else lower_messages(schedule)


def _ends(schedule: PipelineSchedule, buffering: Buffering) -> bool:
    try:
        simulate(schedule, buffering=buffering)
    except PipelineDeadlock:
        return False
    return True


def _most_messages(schedule: PipelineSchedule) -> int:
    """Return a number of slots that no channel can fill."""
    return max(1, schedule.num_steps * schedule.num_micro_batches * len(schedule.edges))


def _advice(schedule: PipelineSchedule) -> str:
    options = []
    for tagged, name in ((True, "one channel per edge"), (False, "one channel per pair of ranks")):
        enough = smallest_buffering(schedule, tagged=tagged)
        options.append(f"{name}: {'no number of slots' if enough is None else enough} is enough")
    return "; ".join(options) + "; or reorder the messages: lower_messages(schedule.without(...), buffering)"
