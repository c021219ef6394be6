"""Roll-ups: how many events began in each span of time, how long they took, and how many bytes they had.

Spans of a level are four times as long as those of the level below it (mip levels), so that a window of any length is
drawn from about as many rows. They also outlive the events: see `Retention`. The few events that last longer are kept
one by one, and divided among spans when somebody asks.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hocket._native import roll_up
from hocket.observe.store.arrow_batches import arrow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

WIDTHS_S = tuple(0.0625 * 4**level for level in range(12))
"""Length of the spans of each level, from a sixteenth of a second to three days."""
NAMES_OF_LAYERS = {"operations": "op", "transfers": "kind", "io": "kind", "dask": "kind", "regions": "region"}
"""Tables of events with a begin and an end, and their column with the name of the event."""
GROUPS = (0, 2, 4)
"""The lowest level of each part of a segment of roll-ups; long events are with the highest ones."""
LONG = -1
"""Level of the events that are kept one by one."""
OTHER_NAMES = "(other names)"
_MOST_NAMES = 2000
"""Of one segment; regions may have a name for each step."""
_LONG_S = 16 * WIDTHS_S[0]
"""Longer events are kept one by one."""
LATEST_S = 1e9
MOST_SUM = (1 << 63) - 1
"""Larger sums of events and bytes are this number."""
_NAME_LENGTH = 200
"""Longer names are cut."""


def rollup_schema() -> pa.Schema:
    """Return the columns of roll-ups: of events of a layer and name of a process in a span of a level.

    "began_s" and "ended_s" are those of a long event, whose level is `LONG`, and 0 elsewhere.
    """
    pa = arrow()
    types = {
        "level": pa.int8(), "bin": pa.int64(), "layer": pa.utf8(), "process": pa.int64(), "rank": pa.int64(),
        "name": pa.utf8(), "count": pa.int64(), "busy_s": pa.float64(), "most_s": pa.float64(), "nbytes": pa.int64(),
        "began_s": pa.float64(), "ended_s": pa.float64(),
    }  # fmt: skip
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


def rollup_of(layer: str, rows: pa.Table) -> pa.Table:
    """Return the roll-ups of events at all levels, by level and span.

    "count" and "nbytes" of an event are in the span in which it began, "busy_s" is divided among all spans that it
    was in; "most_s" is the longest event that began there. Events without an end have no time.

    Args:
        layer: the table that they belong to, one of `NAMES_OF_LAYERS`.
        rows: with the schema of the store.
    """
    pa = arrow()
    column = NAMES_OF_LAYERS[layer]
    codes, names = _shortened(rows[column].unify_dictionaries())
    numbers = [name if name in rows.column_names else None for name in ("weight", "nbytes")]
    parts, first = [], 0
    for part in rows.to_batches():
        own = codes[first : first + part.num_rows]
        first += part.num_rows
        columns = [part[name].to_numpy() for name in ("began_s", "ended_s", "process", "rank")]
        parts.append((*columns, own, *(name and part[name].to_numpy() for name in numbers)))
    level, bins, process, rank, name, *sums = roll_up(parts, WIDTHS_S[0], len(WIDTHS_S), _LONG_S, LATEST_S)
    texts = pa.DictionaryArray.from_arrays(pa.array(name), names).dictionary_decode()
    layers = pa.repeat(pa.scalar(layer, pa.utf8()), len(level))
    return pa.table([level, bins, layers, process, rank, texts, *sums], schema=rollup_schema())


def _shortened(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    """The number of the name of each event, and the names by number: not too many, none too long."""
    import numpy as np

    pa = arrow()
    if not column.num_chunks:
        return np.zeros(0, np.int32), pa.array([], pa.utf8())
    codes = np.concatenate([each.indices.to_numpy() for each in column.chunks])
    names = pa.compute.utf8_slice_codeunits(column.chunk(0).dictionary, 0, _NAME_LENGTH)
    if len(names) > _MOST_NAMES:
        used, codes = np.unique(codes, return_inverse=True)
        codes = np.minimum(codes, _MOST_NAMES).astype(np.int32)
        others = [OTHER_NAMES] * (len(used) > _MOST_NAMES)
        names = pa.concat_arrays([names.take(pa.array(used[:_MOST_NAMES])), pa.array(others, pa.utf8())])
    return codes, names


def merged(rollups: pa.Table, *, in_order: bool = True) -> pa.Table:
    """Return roll-ups in which every span of a name and process occurs once; long events stay as they are.

    Sums larger than `MOST_SUM` are that number, as they are in the roll-ups of events.

    Args:
        rollups: in any order.
        in_order: whether they are to be in the order of level and span.
    """
    pa = arrow()
    keys = ["level", "bin", "layer", "process", "rank", "name"]
    sums = [("count", "sum"), ("busy_s", "sum"), ("most_s", "max"), ("nbytes", "sum"), ("began_s", "max"),
            ("ended_s", "max")]  # fmt: skip
    is_long = pa.compute.equal(rollups["level"], LONG)
    found = saturated_sums(rollups.filter(pa.compute.invert(is_long)), keys, sums)
    chosen = found.select([*keys, *(f"{name}_{how}" for name, how in sums)])
    whole = chosen.rename_columns([*keys, *(name for name, _ in sums)]).cast(rollup_schema())
    if in_order:
        whole = whole.sort_by([("level", "ascending"), ("bin", "ascending")])
    return pa.concat_tables([rollups.filter(is_long).cast(rollup_schema()), whole])


def saturated_sums(rollups: pa.Table, keys: list[str], sums: list[tuple[str, str]]) -> pa.Table:
    """Return roll-ups grouped by columns; "count" and "nbytes" never wrap around: they are at most `MOST_SUM`.

    Args:
        rollups: in any order, with "count" and "nbytes".
        keys: the columns to group by.
        sums: columns and how they are put together, as `pyarrow.TableGroupBy.aggregate` has it; among them "count" and
            "nbytes", which are summed.
    """
    pa = arrow()
    for name in ("count", "nbytes"):
        rollups = rollups.set_column(rollups.column_names.index(name), name, rollups[name].cast(pa.decimal128(38)))
    found = rollups.group_by(keys, use_threads=False).aggregate(sums)
    for name in ("count_sum", "nbytes_sum"):
        found = found.set_column(found.column_names.index(name), name, _saturated(found[name]))
    return found


def _saturated(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    pa = arrow()
    most = pa.scalar(MOST_SUM, sums.type)
    return pa.compute.if_else(pa.compute.greater(sums, most), most, sums).cast(pa.int64())


def level_groups(rollups: pa.Table) -> list[pa.Table]:
    """Return roll-ups, which are in order, in parts by level, as `GROUPS` has them: for their file."""
    import numpy as np

    num_long, *rest = np.searchsorted(rollups["level"].to_numpy(), GROUPS).tolist()
    limits = [num_long, *rest, rollups.num_rows]
    parts = [rollups.slice(begin, end - begin) for begin, end in itertools.pairwise(limits)]
    parts[-1] = arrow().concat_tables([rollups.slice(0, num_long), parts[-1]])
    return [each for each in parts if each.num_rows]
