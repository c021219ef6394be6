"""No ranks wait for each other, with the buffers that there are."""

from __future__ import annotations

from hocket.errors import PipelineDeadlock
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.kind import kinds
from hocket.pipeline.passes.lower_messages import lower_messages
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


def check_deadlock(schedule: PipelineSchedule, buffering: Buffering | str | int = TAGGED) -> None:
    """Check that the schedule ends; times do not matter for that.

    Args:
        schedule: to check. A table without messages is checked with each received just before it is needed, and
            sent as soon as it is there.
        buffering: see `Buffering.parse`.

    Raises:
        PipelineDeadlock: it does not; shows who waits for whom, and says what would be enough.
        MissingAction: what an action needs is not in the table.
    """
    buffering = Buffering.parse(buffering)
    lowered = _with_messages(schedule, buffering)
    try:
        simulate(lowered, buffering=buffering)
    except PipelineDeadlock as deadlock:
        if buffering == TAGGED:
            raise PipelineDeadlock(f"{deadlock}\nno buffers would help") from None
        raise PipelineDeadlock(f"{deadlock}\n{_advice(lowered)}") from None


def smallest_buffering(schedule: PipelineSchedule, *, tagged: bool = True) -> Buffering | None:
    """Return the least number of slots a channel that the schedule can do with, or None if none would do."""
    lowered = _with_messages(schedule, Buffering(1))
    most = _most_messages(lowered)
    if not _ends(lowered, Buffering(None, tagged)):
        return None
    low, high = 0, most  # with as many slots as messages nobody waits for one
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
    """As many slots as no channel can fill."""
    return max(1, schedule.num_steps * schedule.num_micro_batches * len(schedule.edges))


def _advice(schedule: PipelineSchedule) -> str:
    words = []
    for tagged, name in ((True, "channels by edge"), (False, "one channel a pair of ranks")):
        enough = smallest_buffering(schedule, tagged=tagged)
        words.append(f"{name}: {'no number of slots' if enough is None else enough} would do")
    return "; ".join(words) + "; or place the messages anew: lower_messages(schedule.without(...), buffering)"
