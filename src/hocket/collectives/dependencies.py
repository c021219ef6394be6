"""What has to be over before what: the order between messages that the slots of a schedule imply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule


@dataclass(frozen=True, eq=False)
class SlotDependencies:
    """Steps and their order. Step m < num_messages is message m; the others reduce what came with one.

    Args:
        message_of: the message of every transfer.
        after, before: int64, pairs: step `after[i]` comes after step `before[i]`; some stand there twice.
        reducing: the messages whose content is reduced; step num_messages + i reduces that of reducing[i].
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
    """Find them.

    A step that reads a slot comes after the one that wrote it last; a step that writes one comes after all that read
    or wrote it before. Within a round everything is read before anything is written; what only replaces a block there
    waits in a buffer, and not for the reader of the same round.
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
        nothing = np.zeros(0, np.int64)
        return SlotDependencies(message_of, nothing, nothing, nothing)
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
    # The last write in front of every access of its place, and the first one behind it.
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
    real = after != before
    return SlotDependencies(message_of, after[real], before[real], reducing)
