"""Rows that wait for the thread that stores them: those that arrive together are stored together."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Event
from time import monotonic
from typing import Generic, TypeVar

from hocket.observe.store.interface import IngestAnswer
from hocket.observe.store.senders import SenderRows

_GATHERED_ROWS = 50_000
_Run = TypeVar("_Run")


@dataclass(eq=False)
class QueuedRows(Generic[_Run]):
    """Rows that are to be stored.

    Args:
        run: their run, from the owner of its store.
        table: which rows they are.
        piece: they, claimed.
        nbytes: about how much memory they take.
        done: gets the answer.
        since_s: when they came, by the monotonic clock.
    """

    run: _Run
    table: str
    piece: SenderRows
    nbytes: int
    done: Future[IngestAnswer]
    since_s: float

    def has_sender_of(self, other: QueuedRows[_Run]) -> bool:
        """Return whether the same sender sends both, for the same table: then one counts on the other."""
        return self.run is other.run and self.table == other.table and self.piece.sender == other.piece.sender


def gather(queue: Sequence[QueuedRows[_Run]], changed: Condition, wait_s: float, is_closing: Event) -> None:
    """Wait a little for more rows, unless there are many; while holding the lock of `changed`.

    Args:
        queue: rows that wait; others are added meanwhile.
        changed: is notified when some were.
        wait_s: how long the first ones may wait.
        is_closing: then nobody waits.
    """
    until = queue[0].since_s + wait_s
    while (
        sum(each.piece.num_rows for each in queue) < _GATHERED_ROWS
        and (rest := until - monotonic()) > 0
        and not is_closing.is_set()
    ):
        changed.wait(rest)
