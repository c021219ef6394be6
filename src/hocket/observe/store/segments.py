"""Segments: Parquet files with rows of one table of one run, which are never changed after they were written.

The folder of a run has a folder for each table. A segment is named by the first and the last number that it stands for;
small ones are merged into one that has all their numbers, so a segment whose numbers another one has is left over from
a merge that was cut off. Its footer says which rows of which sender it has.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.columns import SCHEMA_VERSION
from hocket.versioned_json import Head

if TYPE_CHECKING:
    import pyarrow as pa

Ranges = Mapping[str, tuple[int, int]]
"""Of each sender, the first of its rows and the one after the last."""
MOST_RUN_NAME = 100
RUN_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_RUN_NAME - 1}}}")
RUN_FILE, STORE_FILE = "run.json", "store.json"
"""The folder of a run has its name and the first one, that of a store the other one."""
STORE_HEAD = Head("hocket store, version ", SCHEMA_VERSION, RecorderError, title="a store", most_nbytes=1 << 16)
SEGMENT_ROWS = 1 << 20
"""Merged segments have about so many rows."""
_NAME = re.compile(r"(\d{10})-(\d{10})\.parquet")
_PART, _ENDING = ".part", ".parquet"
_FOOTER = b"hocket segment, version 1"
_PAGE_NBYTES, _WRITTEN_ROWS = 1 << 23, 1 << 16
"""Large ones take less time to write."""
_STATISTICS = ("began_s", "at_s", "level", "bin")
"""Columns whose smallest and largest values are written: windows of time skip the rest of a file by them."""


def check_store(folder: Path) -> None:
    """Check the version of a store.

    Raises:
        RecorderError: its tables are of another version, or its file is damaged; names both versions.
    """
    try:
        STORE_HEAD.load(folder / STORE_FILE)
    except RecorderError as error:
        raise RecorderError(f"{error}; push its runs into a new store") from None


@dataclass(frozen=True)
class Segment:
    """A file.

    Args:
        path: of it.
        first, last: the numbers that it stands for.
        num_rows: in it.
        nbytes: of the file.
        since_s, written_s: when the first and the last of its rows were written, in seconds since 1970.
        ranges: which rows of which sender it has.
    """

    path: Path
    first: int
    last: int
    num_rows: int
    nbytes: int
    since_s: float
    written_s: float
    ranges: Ranges


@dataclass(frozen=True)
class SegmentPart:
    """A segment that is written, but is not yet one of its table."""

    path: Path
    first: int
    last: int
    num_rows: int
    since_s: float
    ranges: Ranges

    def publish(self) -> Segment:
        """Give it its name; from here on it is there."""
        path = self.path.with_suffix(_ENDING)
        os.replace(self.path, path)
        found = path.stat()
        since_s = min(self.since_s, found.st_mtime)
        return Segment(path, self.first, self.last, self.num_rows, found.st_size, since_s, found.st_mtime, self.ranges)


def write_part(
    folder: Path, first: int, last: int, rows: pa.Table, ranges: Ranges, *, merged_of: Sequence[Segment] = (),
    groups: Sequence[pa.Table] = (),
) -> SegmentPart:  # fmt: skip
    """Write rows into a new segment, to be published.

    Args:
        folder: of the table.
        first, last: the numbers that it stands for.
        rows: to be written.
        ranges: which rows of which sender they are.
        merged_of: the segments whose rows they are; the new one is as old as the youngest of them, and is compressed
            well if it is large.
        groups: the same rows in parts, which can be read without the others; none: all in one.

    Raises:
        OSError: it cannot be written.
    """
    pa = arrow()
    part = folder / f"{first:010}-{last:010}{_PART}"
    schema = rows.schema
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)]
    since_s = min((each.since_s for each in merged_of), default=time())
    is_final = bool(merged_of) and rows.num_rows >= SEGMENT_ROWS // 2
    known = {"since_s": since_s, "ranges": {sender: list(found) for sender, found in ranges.items()}}
    footer = {_FOOTER: json.dumps(known).encode()}
    try:
        with pa.parquet.ParquetWriter(
            part,
            schema.with_metadata(footer),
            compression="zstd" if is_final else "none",  # deltas and dictionaries leave little to be compressed
            use_dictionary=texts,
            # Deltas take half the time of dictionaries, and half the place of plain numbers.
            column_encoding={each.name: "DELTA_BINARY_PACKED" for each in schema if pa.types.is_int64(each.type)},
            write_statistics=[name for name in _STATISTICS if name in schema.names],
            data_page_size=_PAGE_NBYTES,
            write_batch_size=_WRITTEN_ROWS,
        ) as writer:
            for each in groups or [rows]:
                writer.write_table(each.replace_schema_metadata(footer), row_group_size=SEGMENT_ROWS)
        if merged_of:
            os.utime(part, (time(), max(each.written_s for each in merged_of)))
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return SegmentPart(part, first, last, rows.num_rows, since_s, dict(ranges))


def check_run_name(name: str) -> None:
    """Check the name of a run or of a sender.

    Raises:
        InvalidArgument: it is not valid.
    """
    if not RUN_NAME.fullmatch(name):
        raise InvalidArgument(
            "a name has 1 to 100 letters, digits, '.', '_' and '-', and begins with a letter or digit,"
            f" not {name!r:.120}"
        )


def no_such_run(store: object, run: str, known: Sequence[str]) -> InvalidArgument:
    """Return the error of a question about a run that a store does not have; it lists those that it has."""
    listed = f"it has {', '.join(known[:20])}" if known else "it has none"
    wanted = f"has no run {run!r:.60}" if run else "is asked about one of its runs"
    return InvalidArgument(f"store {store} {wanted}: {listed}")


def find_segments(folder: Path) -> list[Segment]:
    """Return the segments of a table by number, without those that others stand for.

    Raises:
        RecorderError: a file is damaged; names it.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            found.append((int(match[1]), -int(match[2]), path))
    chosen: list[Segment] = []
    for first, negative_last, path in sorted(found):
        if not chosen or -negative_last > chosen[-1].last:
            chosen.append(_read_footer(path, first, -negative_last))
    return chosen


def remove_left_over(folder: Path, kept: Iterable[Segment]) -> None:
    """Remove what an owner has left that was killed: parts, and segments that others stand for."""
    paths = {each.path for each in kept}
    for path in folder.iterdir():
        if path.suffix == _PART or (_NAME.fullmatch(path.name) and path not in paths):
            path.unlink(missing_ok=True)


def read_segments(segments: Sequence[Segment]) -> pa.Table:
    """Return the rows of segments of one table.

    Raises:
        RecorderError: a file is damaged; names it.
    """
    pa = arrow()
    parts = []
    for each in segments:
        try:
            parts.append(pa.parquet.read_table(each.path).replace_schema_metadata(None))
        except (OSError, pa.ArrowException) as error:
            raise RecorderError(f"{each.path}: it is damaged: {error}") from None
    return pa.concat_tables(parts)


def joined_ranges(segments: Iterable[Segment]) -> dict[str, tuple[int, int]]:
    """Return which rows of which sender segments have together."""
    result: dict[str, tuple[int, int]] = {}
    for each in segments:
        for sender, (first, after) in each.ranges.items():
            known = result.get(sender, (first, after))
            result[sender] = min(known[0], first), max(known[1], after)
    return result


def _read_footer(path: Path, first: int, last: int) -> Segment:
    pa = arrow()
    try:
        status = path.stat()
        metadata = pa.parquet.read_metadata(path)
        content = json.loads((metadata.metadata or {}).get(_FOOTER, b"null"))
        known = {str(sender): (int(begin), int(after)) for sender, (begin, after) in content["ranges"].items()}
        since_s = float(content["since_s"])
    except (OSError, pa.ArrowException, ValueError, TypeError, AttributeError, KeyError) as error:
        raise RecorderError(f"{path}: it is no segment of the store, or is damaged: {error}") from None
    return Segment(path, first, last, metadata.num_rows, status.st_size, since_s, status.st_mtime, known)
