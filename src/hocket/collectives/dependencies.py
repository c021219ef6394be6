"""The order of messages and reductions that the slots of a schedule imply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule


@dataclass(frozen=True, eq=False)
class SlotDependencies:
    """Steps and their order. Step m < num_messages is message m; each other step reduces the content of a message.

    Args:
        message_of: message of every transfer.
        after, before: int64, pairs: step `after[i]` depends on step `before[i]`; pairs may be repeated.
        reducing: messages whose content is reduced; step num_messages + i reduces that of reducing[i].
    """

    message_of: NDArray[np.int64]
    after: NDArray[np.int64]
    before: NDArray[np.int64]
    reducing: NDArray[np.int64]


def _messages_of(schedule: Schedule) -> NDArray[np.int64]:
    """Return the message of every transfer."""
    begins = np.zeros(len(schedule), np.int64)
    begins[schedule.message_starts] = 1
    return np.cumsum(begins) - 1


def find_dependencies(schedule: Schedule) -> SlotDependencies:
    """Find the dependencies between the steps of a schedule.

    A step that reads a slot depends on the last step that wrote it; a step that writes a slot depends on all earlier
    steps that read or wrote it. Within a round, all reads precede all writes. A write without reduction goes to a
    buffer first, so it does not depend on readers of the same round.
    """
    message_of = _messages_of(schedule)
    num_messages = len(schedule.message_starts)
    is_reduced = np.zeros(num_messages, bool)
    is_reduced[message_of[schedule.reduces]] = True
    reducing = np.flatnonzero(is_reduced)
    step_of_reduction = np.zeros(num_messages, np.int64)
    step_of_reduction[reducing] = num_messages + np.arange(len(reducing))

    num = len(schedule)
    if not num:
        empty = np.zeros(0, np.int64)
        return SlotDependencies(message_of, empty, empty, empty)
    places = np.concatenate(
        [
            schedule.sources.astype(np.int64) * schedule.num_slots + schedule.source_slots,
            schedule.destinations.astype(np.int64) * schedule.num_slots + schedule.destination_slots,
        ]
    )
    times = np.concatenate([2 * schedule.rounds.astype(np.int64), 2 * schedule.rounds.astype(np.int64) + 1])
    steps = np.concatenate([message_of, np.where(schedule.reduces, step_of_reduction[message_of], message_of)])
    writes = np.repeat([False, True], num)
    order = np.lexsort((times, places))
    places, times, steps, writes = places[order], times[order], steps[order], writes[order]

    index = np.arange(2 * num)
    first = np.maximum.accumulate(np.where(np.concatenate(([True], places[1:] != places[:-1])), index, 0))
    # For every access, the last earlier and the first later write of its slot.
    last_write = np.concatenate(([-1], np.maximum.accumulate(np.where(writes, index, -1))[:-1]))
    has_last = last_write >= first
    next_write = np.concatenate((np.minimum.accumulate(np.where(writes, index, 2 * num)[::-1])[::-1][1:], [2 * num]))
    in_place = np.minimum(next_write, 2 * num - 1)
    has_next = ~writes & (next_write < 2 * num) & (places[in_place] == places)
    buffered = has_next & (times[in_place] == times + 1) & (steps[in_place] < num_messages)

    pairs = [
        (steps[has_last], steps[last_write[has_last]]),
        (steps[in_place[has_next & ~buffered]], steps[has_next & ~buffered]),
        (step_of_reduction[reducing], reducing),
    ]
    after, before = (np.concatenate(column) for column in zip(*pairs, strict=True))
    is_real = after != before
    return SlotDependencies(message_of, after[is_real], before[is_real], reducing)
