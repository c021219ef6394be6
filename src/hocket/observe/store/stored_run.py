"""One run in a store: its segments, its roll-ups in memory, and how far each sender has come."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from shutil import rmtree
from threading import Lock
from time import monotonic
from typing import Any

from hocket.errors import RecorderError
from hocket.observe.store.arrow_batches import arrow, schema_of
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.connection import QueryResult
from hocket.observe.store.interface import StoreAnswer
from hocket.observe.store.loaded_rollups import LoadedRollups
from hocket.observe.store.merging import merge_segments, small_neighbours
from hocket.observe.store.rollups import NAMES_OF_LAYERS, level_groups, rollup_of
from hocket.observe.store.segments import (
    RUN_FILE,
    Ranges,
    Segment,
    SegmentPart,
    find_segments,
    joined_ranges,
    read_segments,
    remove_left_over,
    write_part,
)
from hocket.observe.store.senders import NextRows, SenderNumbers, SenderRows
from hocket.observe.store.stored_query import query_segments
from hocket.observe.store.table_questions import TableQuestion, table_sql
from hocket.versioned_json import Head
from hocket.whole_file import write_text

_SENDERS_FILE = "senders.json"
_RUN = Head("hocket stored run, version ", 1, RecorderError, most_nbytes=1 << 20)
_SENDERS = Head("hocket senders, version ", 1, RecorderError, most_nbytes=1 << 26)
_ROLLUPS = "rollups-"
_DIVIDED_ROWS = 100_000
"""So many rows at once are written as two segments, by two threads."""
_GRACE_S = 150.0
"""Files that were merged stay so long, for queries that read them."""


class StoredRun:
    """A run; all methods can be called by any thread, but `seal` and `tidy` by one at a time.

    Args:
        folder: of the run; the owner of the store has made it.

    Raises:
        RecorderError: a file is damaged; names it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        _, content = _RUN.load(folder / RUN_FILE)
        self.description = content.get("description")
        self._lock = Lock()
        self._rollups = LoadedRollups(self._rollup_files)
        """Its lock is taken before the other one."""
        self._segments: dict[str, list[Segment]] = {}
        self._rollup_segments: dict[str, list[Segment]] = {}
        self._numbers: dict[str, int] = {}
        self._forgotten: dict[str, int] = {}
        self._doomed: list[tuple[float, Path]] = []
        self._replaced: dict[str, Any] = {}
        self.on_rollup: Callable[[Any, Any], object] | None = None
        """Is called with the roll-up of rows, and the rows, after they were sealed."""
        self.senders = SenderNumbers(self.name, self._load())

    @staticmethod
    def create(folder: Path, description: dict[str, Any]) -> None:
        """Make the folder of a run.

        Args:
            folder: must not exist.
            description: when it began and other facts, as JSON.
        """
        beside = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}")
        beside.mkdir(mode=0o700)
        try:
            write_text(beside / RUN_FILE, json.dumps({_RUN.key: _RUN.text, "description": description}))
            beside.rename(folder)
        except BaseException:
            rmtree(beside, ignore_errors=True)
            raise

    def next_row(self, table: str, sender: str) -> int:
        """Return the number of the first row of a sender that is not yet sealed."""
        return self.senders.next_row(table, sender)

    def seal(self, table: str, pieces: Sequence[SenderRows], pool: ThreadPoolExecutor) -> None:
        """Write claimed rows into segments; they are visible when this returns.

        Raises:
            OSError: they cannot be written; none of them is visible.
        """
        pa = arrow()
        folder = self.folder / table
        folder.mkdir(exist_ok=True)
        rows = pa.concat_tables([each.rows for each in pieces])
        with self._lock:
            number = self._numbers.get(table, 0) + 1
        halves = _halves(pieces) if rows.num_rows >= _DIVIDED_ROWS else [pieces]
        last = number + len(halves) - 1
        tasks = [
            pool.submit(write_part, folder, number + place, number + place,
                        pa.concat_tables([each.rows for each in half]), _ranges(half))
            for place, half in enumerate(halves)
        ]  # fmt: skip
        rollup, rollup_part, insertion = None, None, None
        with ExitStack() as stack:
            try:
                if table in NAMES_OF_LAYERS:
                    rollup = rollup_of(table, rows)
                    groups = level_groups(rollup)
                    rollup_part = write_part(self._rollup_folder(table), number, last, rollup, {}, groups=groups)
                    insertion = self._rollups.prepared(rollup, stack)
                parts = [task.result() for task in tasks]
            except BaseException:
                _remove_parts([rollup_part, *(task.result() for task in tasks if task.exception() is None)])
                raise
            with self._lock:
                self._numbers[table] = last  # never again, whatever fails from here on
            written, rollup_segment = _published(parts, rollup_part)
            with self._rollups.changing:
                with self._lock:
                    self._segments.setdefault(table, []).extend(written)
                    if rollup_segment is not None:
                        self._rollup_segments.setdefault(table, []).append(rollup_segment)
                    for piece in pieces:
                        self.senders.note_stored(table, piece)
                if rollup is not None:
                    self._rollups.add(rollup, insertion)
        if rollup is not None and self.on_rollup is not None:
            self.on_rollup(rollup, rows)

    def ask(
        self, question: str, begin_s: float | None = None, end_s: float | None = None, num_spans: int = 600
    ) -> StoreAnswer:
        """Answer a question from the roll-ups; see `RunInStore.ask`."""
        return self._rollups.opened().ask(question, begin_s, end_s, num_spans)

    def query(self, sql: str, *, timeout: float, most_rows: int) -> QueryResult:
        """Answer a query over all events; see `query_stored`."""
        with self._lock:
            segments = {table: [each.path for each in found] for table, found in self._segments.items()}
        return query_segments(self.folder, segments, sql, timeout=timeout, most_rows=most_rows, replaced=self._replaced)

    def ask_tables(
        self, question: TableQuestion, begin_s: float, end_s: float, *, timeout: float, most_rows: int
    ) -> QueryResult:
        """Answer a question of tables; see `RunInStore.ask_tables`."""
        sql, names = table_sql(question, "duckdb")
        with self._lock:
            segments = {table: [each.path for each in found] for table, found in self._segments.items()}
        window = {"begin_s": begin_s, "end_s": end_s}
        parameters = {name: window[name] for name in names} or None
        return query_segments(
            self.folder, segments, sql, timeout=timeout, most_rows=most_rows, parameters=parameters,
            replaced=self._replaced,
        )  # fmt: skip

    def write_table(self, table: str, path: Path) -> None:
        """Write all rows of a table into one Parquet file.

        Raises:
            OSError: it cannot be written.
            RecorderError: a segment is damaged; names it.
        """
        pa = arrow()
        with self._lock:
            segments = list(self._segments.get(table, ()))
        with pa.parquet.ParquetWriter(path, schema_of(table), compression="zstd") as writer:
            for each in segments:  # one after the other, which bounds the memory
                writer.write_table(read_segments([each]).cast(schema_of(table)))

    def extent(self) -> tuple[float, float]:
        """Return the begin of the first and the end of the last event; see `RunInStore.extent`."""
        return self._rollups.opened().extent

    def replace_tables(self, tables: Mapping[str, Any]) -> None:
        """Have tables asked instead of what is stored of them, as long as this process lives."""
        with self._lock:
            self._replaced = {**self._replaced, **tables}

    def num_rows(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        with self._lock:
            found = {table: sum(each.num_rows for each in segments) for table, segments in self._segments.items()}
            return {**found, **{table: int(rows.num_rows) for table, rows in self._replaced.items()}}

    def segments(self) -> list[Segment]:
        """Return all segments with events, without roll-ups."""
        with self._lock:
            return list(chain.from_iterable(self._segments.values()))

    def tidy(self) -> None:
        """Merge small segments, and remove files that were merged a while ago."""
        for table in [*self._segments]:
            self._merge(self.folder / table, self._segments[table], is_rollup=False)
        for table in [*self._rollup_segments]:
            self._merge(self._rollup_folder(table), self._rollup_segments[table], is_rollup=True)
        self._rollups.tidy()
        now = monotonic()
        with self._lock:
            due = [path for since, path in self._doomed if now - since > _GRACE_S]
            self._doomed = [(since, path) for since, path in self._doomed if now - since <= _GRACE_S]
        for path in due:
            path.unlink(missing_ok=True)

    def forget(self, written_before_s: float, rollups_before_s: float) -> None:
        """Remove what was written before, in seconds since 1970; how far each sender has come is kept."""
        with self._rollups.changing, self._lock:
            events = _written_before(self._segments.values(), written_before_s)
            rollups = _written_before(self._rollup_segments.values(), rollups_before_s)
            if not events and not rollups:
                return
            forgotten = dict(self._forgotten)
            for table, segments in self._rollup_segments.items():
                numbers = [each.last for each in segments if each in rollups]
                forgotten[table] = max([*numbers, forgotten.get(table, 0)])
            content = {
                _SENDERS.key: _SENDERS.text,
                "next_rows": {f"{table}/{sender}": row for (table, sender), row in self.senders.next_rows().items()},
                "numbers": self._numbers,
                "forgotten": forgotten,
            }
            write_text(self.folder / _SENDERS_FILE, json.dumps(content))
            self._forgotten = forgotten
            for found in (*self._segments.values(), *self._rollup_segments.values()):
                found[:] = [each for each in found if each not in events and each not in rollups]
            self._doomed += [(monotonic(), each.path) for each in (*events, *rollups)]
            if rollups:
                self._rollups.drop()

    def close(self) -> None:
        """Free the memory of roll-ups, and remove files that were merged."""
        with self._rollups.changing, self._lock:
            self._rollups.drop()
            doomed, self._doomed = self._doomed, []
        for _, path in doomed:
            path.unlink(missing_ok=True)

    def _load(self) -> NextRows:
        """Find the segments, and return how far each sender has come."""
        next_rows: dict[tuple[str, str], int] = {}
        if (path := self.folder / _SENDERS_FILE).exists():
            _, content = _SENDERS.load(path)
            try:
                for key, row in content["next_rows"].items():
                    table, _, sender = key.partition("/")
                    next_rows[table, sender] = int(row)
                self._numbers = {table: int(number) for table, number in content["numbers"].items()}
                self._forgotten = {table: int(number) for table, number in content["forgotten"].items()}
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise RecorderError(f"{path}: it is damaged: {type(error).__name__} {error}") from None
        for table in TABLE_COLUMNS:
            folder = self.folder / table
            if not folder.is_dir():
                continue
            found = self._segments[table] = find_segments(folder)
            remove_left_over(folder, found)
            for sender, (_, after) in joined_ranges(found).items():
                next_rows[table, sender] = max(next_rows.get((table, sender), 0), after)
            if table in NAMES_OF_LAYERS:
                self._load_rollups(table, found)
            used = [each.last for each in (*found, *self._rollup_segments.get(table, ()))]
            self._numbers[table] = max(self._numbers.get(table, 0), *used, 0)
        return next_rows

    def _load_rollups(self, table: str, segments: Sequence[Segment]) -> None:
        folder = self._rollup_folder(table)
        found = find_segments(folder)
        remove_left_over(folder, found)
        known = {number for each in found for number in range(each.first, each.last + 1)}
        forgotten = self._forgotten.get(table, 0)
        for each in segments:  # an owner that was killed had no time for theirs
            if each.first > forgotten and known.isdisjoint(range(each.first, each.last + 1)):
                rollup = rollup_of(table, read_segments([each]))
                groups = level_groups(rollup)
                found.append(write_part(folder, each.first, each.last, rollup, {}, groups=groups).publish())
        self._rollup_segments[table] = sorted(found, key=lambda each: each.first)

    def _rollup_folder(self, table: str) -> Path:
        folder = self.folder / (_ROLLUPS + table)
        folder.mkdir(exist_ok=True)
        return folder

    def _rollup_files(self) -> list[Path]:
        with self._lock:
            return [each.path for each in chain.from_iterable(self._rollup_segments.values())]

    def _merge(self, folder: Path, segments: list[Segment], *, is_rollup: bool) -> None:
        with self._lock:
            chosen = small_neighbours(segments)
        if not chosen:
            return
        whole = merge_segments(folder, chosen, is_rollup=is_rollup)
        with self._lock:
            if any(each not in segments for each in chosen):  # some were forgotten meanwhile
                whole.path.unlink(missing_ok=True)
                return
            place = segments.index(chosen[0])
            segments[place : place + len(chosen)] = [whole]
            self._doomed += [(monotonic(), each.path) for each in chosen]


def _written_before(tables: Iterable[list[Segment]], before_s: float) -> list[Segment]:
    return [each for found in tables for each in found if each.written_s < before_s]


def _published(parts: Sequence[SegmentPart], rollup_part: SegmentPart | None) -> tuple[list[Segment], Segment | None]:
    """Segments of written parts; none of them if one cannot be published."""
    written: list[Segment] = []
    try:
        # One after the other: whoever is killed between them leaves the first rows, not the last ones.
        for part in parts:
            written.append(part.publish())
        return written, rollup_part.publish() if rollup_part else None
    except BaseException:
        for each in reversed(written):
            each.path.unlink(missing_ok=True)
        _remove_parts([*parts, rollup_part])
        raise


def _remove_parts(parts: Iterable[SegmentPart | None]) -> None:
    for each in parts:
        if each is not None:
            each.path.unlink(missing_ok=True)


def _halves(pieces: Sequence[SenderRows]) -> list[list[SenderRows]]:
    """The same rows in two parts of about equal length."""
    middle = sum(each.rows.num_rows for each in pieces) // 2
    first: list[SenderRows] = []
    second: list[SenderRows] = []
    before = 0
    for each in pieces:
        count = min(max(middle - before, 0), each.rows.num_rows)
        if count:
            first.append(SenderRows(each.sender, each.first_row, each.rows.slice(0, count)))
        if count < each.rows.num_rows:
            second.append(SenderRows(each.sender, each.first_row + count, each.rows.slice(count)))
        before += each.rows.num_rows
    return [first, second]


def _ranges(pieces: Sequence[SenderRows]) -> Ranges:
    result: dict[str, tuple[int, int]] = {}
    for each in pieces:
        first, after = result.get(each.sender, (each.first_row, each.after))
        result[each.sender] = min(first, each.first_row), max(after, each.after)
    return result
