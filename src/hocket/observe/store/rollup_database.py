"""The roll-ups of one run in memory, and the answers to questions about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, QueryTimeout, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.connection import connect
from hocket.observe.store.overview import sql_of
from hocket.observe.store.rollups import LATEST_S, LONG, WIDTHS_S, merged, rollup_schema

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_PARTIAL_ROWS = 200_000
"""Roll-ups are merged when so many rows were added."""
_MOST_SPANS = 100_000
_MOST_PARTS = 5_000_000
"""Long events are divided into so many parts at most for one answer; more make its spans wider."""
_TIMEOUT_S = 30.0
_TYPES = {"int8": "TINYINT", "int64": "BIGINT", "string": "VARCHAR", "double": "DOUBLE"}


@dataclass(frozen=True)
class StoreAnswer:
    """The answer to a question about a window.

    Args:
        width_s: length of a span; "bin" times it is the begin of a span in seconds since the run began.
        begin_s, end_s: the window, in whole spans.
        columns: their names.
        rows: values by column.
    """

    width_s: float
    begin_s: float
    end_s: float
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class RollupDatabase:
    """Roll-ups; questions can be asked by any thread, rows are inserted by one at a time.

    Args:
        rollups: the first rows; None: there are none.
    """

    def __init__(self, rollups: pa.Table | None) -> None:
        with connect():
            import duckdb
        self._database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "1GB", "temp_directory": ""})
        columns = ", ".join(f'"{field.name}" {_TYPES[str(field.type)]}' for field in rollup_schema())
        self._database.execute(f"CREATE TABLE rollups ({columns})")
        self._num_partial_rows = self._num_long = 0
        self._least_s, self._most_s = math.inf, -math.inf
        if rollups is not None:
            self.insert(merged(rollups))
            self._num_partial_rows = 0

    @property
    def extent(self) -> tuple[float, float]:
        """The begin of the first and the end of the last event, to a span; (0, 0) if the run has no events."""
        if self._least_s > self._most_s:
            return 0.0, 0.0
        return max(self._least_s, -LATEST_S), min(self._most_s, LATEST_S)

    def insert(self, rollups: pa.Table) -> None:
        """Add rows."""
        self._widen(rollups)
        with self._cursor() as cursor:
            cursor.register("added", rollups)
            cursor.execute("INSERT INTO rollups SELECT * FROM added")
            cursor.unregister("added")
        self._num_partial_rows += rollups.num_rows

    def tidy(self) -> None:
        """Merge rows of the same span, if many were added."""
        if self._num_partial_rows <= _MOST_PARTIAL_ROWS:
            return
        with self._cursor() as cursor:
            rows = merged(cursor.sql("SELECT * FROM rollups").to_arrow_table().cast(rollup_schema()))
            cursor.register("merged_rows", rows)
            cursor.execute("BEGIN")
            cursor.execute("DELETE FROM rollups")
            cursor.execute("INSERT INTO rollups SELECT * FROM merged_rows")
            cursor.execute("COMMIT")
            cursor.unregister("merged_rows")
        self._num_partial_rows = 0

    def ask(self, question: str, begin_s: float | None, end_s: float | None, num_spans: int) -> StoreAnswer:
        """Answer a question; see `StoredRun.ask`."""
        import duckdb

        sql = sql_of(question, "duckdb")
        with self._cursor() as cursor:
            timer = Timer(_TIMEOUT_S, cursor.interrupt)
            timer.start()
            try:
                least, most = self.extent
                begin = least if begin_s is None else begin_s
                end = max(most, begin) if end_s is None else end_s
                if not (abs(begin) <= LATEST_S and abs(end) <= LATEST_S and begin <= end):
                    raise InvalidArgument(f"a window must begin before it ends, not {begin:g} and {end:g}")
                if not 1 <= num_spans <= _MOST_SPANS:
                    raise InvalidArgument(f"a window has 1 to {_MOST_SPANS} spans, not {num_spans}")
                level = self._level(cursor, begin, end, num_spans)
                width_s = WIDTHS_S[level]
                first, after = _spans(begin, end, width_s)
                cursor.execute(sql, {"level": level, "first": first, "after": after, "width_s": width_s})
                columns = tuple(column[0] for column in cursor.description)
                return StoreAnswer(width_s, first * width_s, after * width_s, columns, tuple(cursor.fetchall()))
            except duckdb.InterruptException:
                raise QueryTimeout(f"the answer took longer than {_TIMEOUT_S:g} s: ask for a shorter window") from None
            except duckdb.Error as error:
                raise ResourceExhausted(f"the question could not be answered: {error}") from None
            finally:
                timer.cancel()

    def _level(self, cursor: Any, begin_s: float, end_s: float, num_spans: int) -> int:
        """The lowest level with so few spans, and so few parts of long events."""
        num_long = (
            self._num_long
            and cursor.execute(
                f"SELECT count(*) FROM rollups WHERE level = {LONG} AND began_s < $end AND ended_s >= $begin",
                {"begin": begin_s, "end": end_s},
            ).fetchone()[0]
        )
        for level, width_s in enumerate(WIDTHS_S):
            first, after = _spans(begin_s, end_s, width_s)
            if after - first <= num_spans and num_long * (after - first) <= _MOST_PARTS:
                return level
        return len(WIDTHS_S) - 1

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        cursor = self._database.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _widen(self, rollups: pa.Table) -> None:
        """Note the begin of the first and the end of the last event, to a span."""
        compute, level = arrow().compute, rollups["level"]
        lowest, long_events = (rollups.filter(compute.equal(level, each)) for each in (0, LONG))
        self._num_long += long_events.num_rows
        if lowest.num_rows:
            least, most = compute.min_max(lowest["bin"]).as_py().values()
            self._least_s = min(self._least_s, least * WIDTHS_S[0])
            self._most_s = max(self._most_s, (most + 1) * WIDTHS_S[0])
        if long_events.num_rows:
            self._least_s = min(self._least_s, compute.min(long_events["began_s"]).as_py())
            self._most_s = max(self._most_s, compute.max(long_events["ended_s"]).as_py())


def _spans(begin_s: float, end_s: float, width_s: float) -> tuple[int, int]:
    """The first span of a window and the one after its last."""
    return int(begin_s // width_s), int(-(-end_s // width_s))
