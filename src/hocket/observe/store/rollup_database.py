"""The roll-ups of one run in memory, and the answers to questions about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

from hocket.errors import QueryTimeout, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.connection import duckdb_module
from hocket.observe.store.interface import StoreAnswer
from hocket.observe.store.overview import sql_of
from hocket.observe.store.rollup_files import least_level, lowest_bins, read_levels
from hocket.observe.store.rollups import GROUPS, LONG, NAMES_OF_LAYERS, merged, rollup_schema
from hocket.observe.store.spans import Extent, choose_spans, extent_of, seconds_of

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_PARTIAL_ROWS = 200_000
"""Roll-ups are merged when so many rows were added."""
MOST_LOADED_ROWS = 2_000_000
_TIMEOUT_S = 30.0
_LAYERS = "ENUM(" + ", ".join(f"'{each}'" for each in sorted(NAMES_OF_LAYERS)) + ")"
"""Rows are grouped by it in half the time that they are by texts, and sorted as texts are."""
_TYPES = {"int8": "TINYINT", "int64": "BIGINT", "string": "VARCHAR", "double": "DOUBLE"}


@dataclass(frozen=True)
class Insertion:
    """Rows that were added to a database in a transaction; a context manager.

    Args:
        database: it.
        commit: makes them visible.
        close: takes them back, unless they were committed.
    """

    database: RollupDatabase
    commit: Callable[[], None]
    close: Callable[[], None]

    def __enter__(self) -> Insertion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RollupDatabase:
    """Roll-ups; questions can be asked by any thread, rows are inserted by one at a time.

    Where they are many, the lowest levels stay in their files: windows that need them are short.

    Args:
        paths: the segments of roll-ups that it begins with.
        files: returns all segments as they are now: what was inserted since is among them.

    Raises:
        RecorderError: a file is damaged; names it.
    """

    def __init__(self, paths: Sequence[Path], files: Callable[[], list[Path]]) -> None:
        self._files = files
        self._database = duckdb_module().connect(
            ":memory:", config={"threads": 1, "memory_limit": "1GB", "temp_directory": ""}
        )
        columns = {field.name: _TYPES[str(field.type)] for field in rollup_schema()} | {"layer": _LAYERS}
        listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self._database.execute(f"CREATE TABLE rollups ({listed})")
        self._counts_lock = Lock()
        self._num_rows = self._num_partial_rows = 0
        self._known = Extent()
        self._least_level = least_level(paths, MOST_LOADED_ROWS)
        if self._least_level and (lowest := lowest_bins(paths)):
            self._known = Extent(*seconds_of(*lowest))
        for rollups in read_levels(paths, self._least_level):
            self.insert(rollups)
        self._num_partial_rows = 0  # files are merged as they come

    @property
    def extent(self) -> tuple[float, float]:
        """The begin of the first and the end of the last event, to a span; (0, 0) if the run has no events."""
        return self._known.limits

    @property
    def is_too_large(self) -> bool:
        """Whether the lowest levels should be asked of the files from now on, by a new database."""
        return self._num_rows > 2 * MOST_LOADED_ROWS and self._least_level < GROUPS[-1]

    def insert(self, rollups: pa.Table) -> None:
        """Add rows, as far as their level is in memory."""
        with self.inserted(rollups) as insertion:
            insertion.commit()

    def inserted(self, rollups: pa.Table) -> Insertion:
        """Add rows that nobody sees before they are committed; nor ever, if they are not."""
        kept, known = rollups, extent_of(rollups)
        if self._least_level:
            compute, level = arrow().compute, rollups["level"]
            is_kept = compute.or_(compute.greater_equal(level, self._least_level), compute.equal(level, LONG))
            kept = rollups.filter(is_kept)
        cursor = self._database.cursor()
        try:
            cursor.execute("BEGIN")
            cursor.register("added", kept)
            cursor.execute("INSERT INTO rollups SELECT * FROM added")
            cursor.unregister("added")
        except BaseException:
            cursor.close()
            raise

        def commit() -> None:
            cursor.execute("COMMIT")
            with self._counts_lock:
                self._known = self._known.joined(known)
                self._num_rows += kept.num_rows
                self._num_partial_rows += kept.num_rows

        return Insertion(self, commit, cursor.close)

    def tidy(self) -> None:
        """Merge rows of the same span, if many were added; others may be added meanwhile."""
        num_partial = self._num_partial_rows
        if num_partial <= _MOST_PARTIAL_ROWS:
            return
        with self._cursor() as cursor:
            cursor.execute("BEGIN")  # rows that are added from here on are neither seen nor removed
            found = cursor.sql("SELECT * FROM rollups").to_arrow_table().cast(rollup_schema())
            rows = merged(found, in_order=False)
            cursor.register("merged_rows", rows)
            cursor.execute("DELETE FROM rollups")
            cursor.execute("INSERT INTO rollups SELECT * FROM merged_rows")
            cursor.execute("COMMIT")
            cursor.unregister("merged_rows")
        with self._counts_lock:
            self._num_rows += rows.num_rows - found.num_rows
            self._num_partial_rows -= num_partial

    def ask(self, question: str, begin_s: float | None, end_s: float | None, num_spans: int) -> StoreAnswer:
        """Answer a question; see `StoredRun.ask`."""
        import duckdb

        with self._cursor() as cursor:
            timer = Timer(_TIMEOUT_S, cursor.interrupt)
            timer.start()
            try:
                chosen = choose_spans(
                    begin_s, end_s, num_spans, self.extent, lambda begin, end: self._num_long_in(cursor, begin, end)
                )
                source = _read_parquet(self._files()) if chosen.level < self._least_level else "rollups"
                sql = sql_of(question, "duckdb", source=source, has_long=bool(chosen.num_long))
                cursor.execute(sql, chosen.parameters)
                columns = tuple(column[0] for column in cursor.description)
                return StoreAnswer(chosen.width_s, chosen.begin_s, chosen.end_s, columns, tuple(cursor.fetchall()))
            except duckdb.InterruptException:
                raise QueryTimeout(f"the answer took longer than {_TIMEOUT_S:g} s: ask for a shorter window") from None
            except duckdb.Error as error:
                raise ResourceExhausted(f"the question could not be answered: {error}") from None
            finally:
                timer.cancel()

    def _num_long_in(self, cursor: Any, begin_s: float, end_s: float) -> int:
        if not self._known.num_long:
            return 0
        sql = f"SELECT count(*) FROM rollups WHERE level = {LONG} AND began_s < $end AND ended_s >= $begin"
        return int(cursor.execute(sql, {"begin": begin_s, "end": end_s}).fetchone()[0])

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        cursor = self._database.cursor()
        try:
            yield cursor
        finally:
            cursor.close()


def _read_parquet(paths: Iterable[Path]) -> str:
    """The SQL of all rows of files."""
    listed = ", ".join("'" + str(each).replace("'", "''") + "'" for each in paths)
    return f"read_parquet([{listed}])"
