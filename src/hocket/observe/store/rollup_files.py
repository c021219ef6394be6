"""Segments of roll-ups: their rows are in parts by level, which can be read without the others.

Of a long run with many processes the lowest levels are as long as the run itself; a window that needs them is short,
and reads a part of them from the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import RecorderError
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.rollups import GROUPS, LONG, WIDTHS_S, rollup_schema

if TYPE_CHECKING:
    import pyarrow as pa


def least_level(paths: Iterable[Path], most_rows: int) -> int:
    """Return the lowest of `GROUPS` from which on all rows are at most so many.

    Raises:
        RecorderError: a file is damaged; names it.
    """
    counts = dict.fromkeys(GROUPS, 0)
    for path in paths:
        with _opened(path) as file:
            for number, highest in enumerate(_highest_levels(file)):
                group = max(each for each in GROUPS if each <= highest)
                counts[group] += file.metadata.row_group(number).num_rows
    for least in GROUPS:
        if sum(count for group, count in counts.items() if group >= least) <= most_rows:
            return least
    return GROUPS[-1]


def read_levels(paths: Iterable[Path], least: int) -> Iterator[pa.Table]:
    """Yield the rows of parts that have levels from one on, and long events.

    Raises:
        RecorderError: a file is damaged; names it.
    """
    for path in paths:
        with _opened(path) as file:
            chosen = [number for number, highest in enumerate(_highest_levels(file)) if highest >= least]
            rows = file.read_row_groups(chosen).replace_schema_metadata(None).cast(rollup_schema())
        if rows.num_rows:
            yield rows


def lowest_bins(paths: Iterable[Path]) -> tuple[int, int] | None:
    """Return the first and the last span of the lowest level, if there are any.

    Raises:
        RecorderError: a file is damaged; names it.
    """
    compute = arrow().compute
    found = []
    for path in paths:
        with _opened(path) as file:
            rows = file.read(["level", "bin"])
        bins = rows["bin"].filter(compute.equal(rows["level"], 0))
        if len(bins):
            found.append(compute.min_max(bins).as_py())
    return (min(each["min"] for each in found), max(each["max"] for each in found)) if found else None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            if file.schema_arrow.names != rollup_schema().names:
                raise RecorderError(f"{path}: it has other columns than roll-ups")
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RecorderError(f"{path}: it is damaged: {error}") from None


def _highest_levels(file: Any) -> Iterator[int]:
    """Of each part of a segment, the highest level; one that does not say it may have all, and so may long events."""
    place, last = file.schema_arrow.names.index("level"), len(WIDTHS_S) - 1
    for number in range(file.num_row_groups):
        statistics = file.metadata.row_group(number).column(place).statistics
        has_limits = statistics is not None and statistics.has_min_max
        yield int(statistics.max) if has_limits and statistics.max != LONG else last
