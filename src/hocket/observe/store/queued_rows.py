"""Rows that wait for the thread that stores them: those that arrive together are stored together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Event
from time import monotonic
from typing import Generic, Protocol, TypeVar

from hocket.errors import ResourceExhausted
from hocket.observe.store.interface import IngestAnswer
from hocket.observe.store.senders import SenderNumbers, SenderRows

_GATHERED_ROWS = 50_000


class RunWithSenders(Protocol):
    """A run whose senders are numbered."""

    senders: SenderNumbers


_Run = TypeVar("_Run", bound=RunWithSenders)


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


class RowQueue(Generic[_Run]):
    """Rows that wait; each method is called while holding the lock of `changed`.

    Args:
        changed: is notified when rows have come.
        most_nbytes: they take at most so much memory.

    Attributes:
        rows: those that were not taken.
    """

    def __init__(self, changed: Condition, most_nbytes: int) -> None:
        self._changed = changed
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self.rows: list[QueuedRows[_Run]] = []

    def submit(self, run: _Run, table: str, piece: SenderRows, nbytes: int) -> Future[IngestAnswer]:
        """Add rows, unless they are stored or wait already; return what gets the answer.

        Raises:
            InvalidArgument: they are not those that come next.
            ResourceExhausted: too much waits.
        """
        if self._nbytes + nbytes > self._most_nbytes:
            raise ResourceExhausted(f"{self._nbytes} bytes wait for being stored: send it again later")
        done: Future[IngestAnswer] = Future()
        if (answer := run.senders.claim(table, piece)) is not None:
            done.set_result(answer)
            return done
        self.rows.append(QueuedRows(run, table, piece, nbytes, done, monotonic()))
        self._nbytes += nbytes
        self._changed.notify_all()
        return done

    def gather(self, wait_s: float, is_closing: Event) -> None:
        """Wait a little for more rows, unless there are many.

        Args:
            wait_s: how long the first ones may wait.
            is_closing: then nobody waits.
        """
        until = self.rows[0].since_s + wait_s
        while (
            sum(each.piece.num_rows for each in self.rows) < _GATHERED_ROWS
            and (rest := until - monotonic()) > 0
            and not is_closing.is_set()
        ):
            self._changed.wait(rest)

    def take(self) -> list[QueuedRows[_Run]]:
        """Return all rows; they take memory until `release`."""
        taken, self.rows = self.rows, []
        return taken

    def release(self, taken: Sequence[QueuedRows[_Run]]) -> None:
        """Note that rows that were taken are stored or refused."""
        self._nbytes -= sum(each.nbytes for each in taken)

    def drop(self, is_refused: Callable[[QueuedRows[_Run]], bool]) -> list[QueuedRows[_Run]]:
        """Remove the rows that are refused, and return them."""
        kept: list[QueuedRows[_Run]] = []
        dropped: list[QueuedRows[_Run]] = []
        for each in self.rows:
            (dropped if is_refused(each) else kept).append(each)
        self.rows = kept
        self.release(dropped)
        return dropped
