"""The roll-ups of one run in memory: loaded when somebody asks, and kept until nobody has asked for a while.

Whoever stores a segment of roll-ups adds it to the list of files and to memory, both while holding `changing`. A load
takes the list at one moment, and then reads the files without holding anything up; what is added meanwhile is noted,
and inserted when the files are read. So each segment is read or inserted: never both, and never neither.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from hocket.errors import QueryTimeout
from hocket.observe.store.rollup_database import Insertion, RollupDatabase

if TYPE_CHECKING:
    import pyarrow as pa

_IDLE_S = 600.0
"""Roll-ups that nobody asks for leave the memory after that time."""
_LOAD_S = 120.0
"""Whoever waits for the load of another thread waits so long."""


@dataclass(frozen=True)
class _Load:
    """A load that goes on: the files that it reads, and what was stored since they were listed."""

    paths: list[Path]
    missed: list[pa.Table] = field(default_factory=list)
    done: Future[RollupDatabase] = field(default_factory=Future)


class LoadedRollups:
    """The roll-ups of one run in memory, as long as they are needed; for all threads.

    Args:
        files: returns the segments of roll-ups as they are now.

    Attributes:
        changing: held while memory and the list of files change together; nothing slow is done meanwhile.
    """

    def __init__(self, files: Callable[[], list[Path]]) -> None:
        self._files = files
        self.changing = Lock()
        self._database: RollupDatabase | None = None
        self._load: _Load | None = None
        """Goes on only while there is no database."""
        self._asked_s = monotonic()

    def opened(self) -> RollupDatabase:
        """Return the database, with all that was stored before this call; whoever asks first loads it.

        Raises:
            QueryTimeout: another thread loads it, and takes too long.
            RecorderError: a file is damaged; names it.
        """
        self._asked_s = monotonic()
        with self.changing:
            if self._database is not None:
                return self._database
            known = self._load
            load = self._load = known or _Load(self._files())
        if known is not None:
            if not wait([load.done], _LOAD_S).done:
                raise QueryTimeout(f"the roll-ups were not loaded within {_LOAD_S:g} s: ask again later")
            return load.done.result()
        try:
            database = self._read(load)
        except BaseException as error:
            with self.changing:
                if self._load is load:
                    self._load = None
            load.done.set_exception(error)
            raise
        load.done.set_result(database)
        return database

    def _read(self, load: _Load) -> RollupDatabase:
        database = RollupDatabase(load.paths, self._files)
        with self.changing:
            missed = [*load.missed]
            load.missed.clear()
        for each in missed:
            database.insert(each)
        with self.changing:  # only what was stored since the line above
            for each in load.missed:
                database.insert(each)
            if self._load is load:  # else some of it was removed: only those get it who had asked before
                self._database, self._load = database, None
        return database

    def prepared(self, rollup: pa.Table, stack: ExitStack) -> Insertion | None:
        """Insert roll-ups that are not yet visible; None: nothing is loaded, or it cannot take them."""
        with self.changing:
            database = self._database
        if database is None:
            return None
        try:
            return stack.enter_context(database.inserted(rollup))
        except Exception:
            with self.changing:
                self._database = None  # the next question reads all roll-ups again
            return None

    def add(self, rollup: pa.Table, insertion: Insertion | None) -> None:
        """Make roll-ups visible whose segment was added to the list of files; while holding `changing`.

        Args:
            rollup: what the segment has.
            insertion: from `prepared`.
        """
        try:
            if insertion is not None and insertion.database is self._database:
                insertion.commit()
            elif self._database is not None:  # it was loaded meanwhile, without them
                self._database.insert(rollup)
            elif self._load is not None:
                self._load.missed.append(rollup)
        except Exception:
            self._database = None

    def drop(self) -> None:
        """Free the memory, since files were removed from the list; while holding `changing`.

        Whoever asks just now keeps what was there.
        """
        self._database = self._load = None

    def tidy(self) -> None:
        """Merge what was inserted, and free the memory if it was not needed for a while."""
        with self.changing:
            database = self._database
        if database is None:
            return
        database.tidy()
        with self.changing:
            if self._database is database and (monotonic() - self._asked_s > _IDLE_S or database.is_too_large):
                self._database = None  # the next question reads what it needs
