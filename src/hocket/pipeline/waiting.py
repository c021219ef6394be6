"""Describe actions and deadlocks in error messages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from hocket.pipeline.buffering import Buffering
from hocket.pipeline.lowered import Lowered
from hocket.pipeline.schedule import PipelineSchedule

_AROUND = 2
_MOST_LINES = 24


def neighbourhood(schedule: PipelineSchedule, rank: int, index: int) -> str:
    """Return an action in brackets between the actions before and after it on its rank."""
    actions = schedule.actions[rank]
    first, last = max(0, index - _AROUND), min(len(actions), index + _AROUND + 1)
    texts = [f"[{actions[i]}]" if i == index else str(actions[i]) for i in range(first, last)]
    return " ".join(["..."] * (first > 0) + texts + ["..."] * (last < len(actions)))


def describe(schedule: PipelineSchedule, row: int) -> str:
    """Return rank, index and neighbours of an action."""
    rank, index = schedule.place(row)
    return f"rank {rank}, action {index}: {neighbourhood(schedule, rank, index)}"


def describe_deadlock(
    schedule: PipelineSchedule, lowered: Lowered, stuck: tuple[int, ...], buffering: Buffering
) -> str:
    """Return the cycle of a deadlock, one line per action with its neighbours."""
    rows = _cycle(schedule, lowered, stuck)
    lines = [f"{len(rows)} actions wait for each other, with {buffering} messages:"]
    for row, following in zip(rows, rows[1:] + rows[:1], strict=True):
        rank, index = schedule.place(row)
        other_rank, other_index = schedule.place(following)
        reason = "of another rank"
        if other_rank == rank:
            reason = "which is earlier" if other_index < index else "whose message is first in the queue"
        lines.append(
            f"  rank {rank}, action {index}: {neighbourhood(schedule, rank, index)} "
            f"waits for {schedule.action(following)}, {reason}"
        )
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines[half:-half] = [f"  ... {len(lines) - 2 * half} more ..."]
    return "\n".join(lines)


def _cycle(schedule: PipelineSchedule, lowered: Lowered, stuck: tuple[int, ...]) -> list[int]:
    """Return row numbers of actions of which each waits for the next, and the last for the first."""
    unfinished = set(stuck)
    waits_for = defaultdict(list)
    among = np.isin(lowered.after, stuck) & np.isin(lowered.before, stuck)
    for after, before in zip(lowered.after[among].tolist(), lowered.before[among].tolist(), strict=True):
        waits_for[after].append(before)
    task = next(task for task in stuck if waits_for[task])
    index_of: dict[int, int] = {}
    path: list[int] = []
    while task not in index_of:
        index_of[task] = len(path)
        path.append(task)
        task = next(other for other in waits_for[task] if other in unfinished)
    action_of = {task: row for row, task in reversed(list(enumerate(lowered.begins.tolist())))}
    # A message that waits for its receiver is reported as its sender, which waits with it.
    action_of |= dict(zip(lowered.message_tasks.tolist(), lowered.messages.source.tolist(), strict=True))
    rows = [action_of[task] for task in path[index_of[task] :] if task in action_of]
    # Leave out actions between two others of the cycle on the same rank: they add no information.
    around = zip(rows[-1:] + rows[:-1], rows, rows[1:] + rows[:1], strict=True)
    return [row for later, row, earlier in around if not (later == row + 1 and earlier == row - 1)]
