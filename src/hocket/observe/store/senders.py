"""How far each sender of a run has come.

Whoever sends rows numbers them from 0 on, for each table. So rows that were sent twice, after an answer was lost, are
stored once, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from hocket.errors import InvalidArgument
from hocket.observe.store.interface import IngestAnswer
from hocket.observe.store.segments import check_run_name

MOST_SENDERS = 10_000
"""Of one table of a run."""
NextRows = Mapping[tuple[str, str], int]
"""The row that is expected next, by table and sender."""


@dataclass(frozen=True)
class SenderRows:
    """Rows of one sender: those from `first_row` on of all that it sends of a table.

    Raises:
        InvalidArgument: the name of the sender is not valid, or the number is negative.
    """

    sender: str
    first_row: int
    rows: Any

    def __post_init__(self) -> None:
        check_run_name(self.sender)
        if self.first_row < 0:
            raise InvalidArgument(f"the number of the first row must be at least 0, not {self.first_row}")

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return int(self.rows.num_rows)

    @property
    def after(self) -> int:
        """The number of the row that comes next."""
        return self.first_row + self.num_rows


class SenderNumbers:
    """Numbers the rows of the senders of one run; for all threads.

    A place for rows is claimed first; then they are stored, or the claim is given up.

    Args:
        run: name of the run, for errors.
        next_rows: the rows that are expected next.
    """

    def __init__(self, run: str, next_rows: NextRows) -> None:
        self._run = run
        self._lock = Lock()
        self.restart(next_rows)

    def restart(self, next_rows: NextRows) -> None:
        """Go on with what is stored; nothing is claimed any more."""
        with self._lock:
            self._next_rows, self._claimed = dict(next_rows), dict(next_rows)

    def claim(self, table: str, piece: SenderRows) -> IngestAnswer | None:
        """Reserve a place for rows.

        Returns:
            None: they are to be stored. An answer: they are not, and this has become of them.

        Raises:
            InvalidArgument: the table has too many senders.
        """
        key = table, piece.sender
        with self._lock:
            expected, stored = self._claimed.get(key, 0), self._next_rows.get(key, 0)
            if piece.first_row == expected and piece.num_rows:
                if key not in self._claimed and sum(each == table for each, _ in self._claimed) >= MOST_SENDERS:
                    raise InvalidArgument(
                        f"table {table} of {self._run} has {MOST_SENDERS} senders, the most there can be"
                    )
                self._claimed[key] = piece.after
                return None
        is_known = piece.after <= stored
        return IngestAnswer(stored, piece.num_rows if is_known else 0, not is_known and piece.after <= expected)

    def note_stored(self, table: str, piece: SenderRows) -> None:
        """Note that claimed rows are stored."""
        with self._lock:
            self._next_rows[table, piece.sender] = piece.after

    def give_up(self, table: str, sender: str) -> None:
        """Take back what a sender has claimed and could not be stored."""
        with self._lock:
            self._claimed[table, sender] = self._next_rows.get((table, sender), 0)

    def next_row(self, table: str, sender: str) -> int:
        """Return the number of the first row of a sender that is not yet stored."""
        with self._lock:
            return self._next_rows.get((table, sender), 0)

    def next_rows(self) -> NextRows:
        """Return the same of all senders."""
        with self._lock:
            return dict(self._next_rows)
