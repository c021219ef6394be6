"""Roll-ups: how many events began in each span of time, how long they took, and how many bytes they had.

Spans of a level are four times as long as those of the level below it (mip levels), so that a window of any length is
drawn from about as many rows. They also outlive the events: see `Retention`. The few events that last longer are kept
one by one, and divided among spans when somebody asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.store.arrow_batches import arrow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

WIDTHS_S = tuple(0.0625 * 4**level for level in range(12))
"""Length of the spans of each level, from a sixteenth of a second to three days."""
NAMES_OF_LAYERS = {"operations": "op", "transfers": "kind", "io": "kind", "regions": "region"}
"""Tables of events with a begin and an end, and their column with the name of the event."""
LONG = -1
"""Level of the events that are kept one by one."""
OTHER_NAMES = "(other names)"
_MOST_NAMES = 2000
"""Of one segment; regions may have a name for each step."""
_LONG_S = 16 * WIDTHS_S[0]
"""Longer events are kept one by one."""
LATEST_S = 1e9
_PART_ROWS = 1 << 18
"""So many rows are rolled up at once, which bounds the memory that it takes."""
_NAME_LENGTH = 200
"""Longer names are cut."""
_MOST_NUMBER, _MOST_TOTAL = float(1 << 53), float(1 << 62)
_MOST_DENSE = 1 << 16
"""Numbers in so small a range are counted in an array instead of being sorted."""


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
    """Return the roll-ups of events at all levels.

    "count" and "nbytes" of an event are in the span in which it began, "busy_s" is divided among all spans that it
    was in; "most_s" is the longest event that began there. Events without an end have no time.

    Args:
        layer: the table that they belong to, one of `NAMES_OF_LAYERS`.
        rows: with the schema of the store.
    """
    pa = arrow()
    parts = [_rollup_of_part(layer, rows.slice(first, _PART_ROWS)) for first in range(0, rows.num_rows, _PART_ROWS)]
    return pa.concat_tables(parts) if parts else rollup_schema().empty_table()


def _rollup_of_part(layer: str, rows: pa.Table) -> pa.Table:
    pa = arrow()
    events = _Events(layer, rows)
    is_long = events.seconds > _LONG_S
    parts = []
    if is_long.any():
        parts.append(_long_rows(layer, events, is_long))
        spans = _spread(events, ~is_long)
    else:
        spans = _spread(events, slice(None))
    lower = _summed(spans, events)
    level = 0
    while level < len(WIDTHS_S) and len(lower.bins) and lower.bins.min() != lower.bins.max():
        parts.append(_arrow_rows(layer, [level], lower, events))
        lower = _summed([dataclasses.replace(lower, bins=lower.bins >> 2)], events)
        level += 1
    # From here on all is in one span, so the levels differ by its number only.
    return pa.concat_tables([*parts, _arrow_rows(layer, range(level, len(WIDTHS_S)), lower, events)])


def merged(rollups: pa.Table) -> pa.Table:
    """Return roll-ups in which every span of a name and process occurs once; long events stay as they are."""
    pa = arrow()
    keys = ["level", "bin", "layer", "process", "rank", "name"]
    sums = [("count", "sum"), ("busy_s", "sum"), ("most_s", "max"), ("nbytes", "sum"), ("began_s", "max"),
            ("ended_s", "max")]  # fmt: skip
    is_long = pa.compute.equal(rollups["level"], LONG)
    found = rollups.filter(pa.compute.invert(is_long)).group_by(keys, use_threads=False).aggregate(sums)
    chosen = found.select([*keys, *(f"{name}_{how}" for name, how in sums)])
    whole = chosen.rename_columns([*keys, *(name for name, _ in sums)]).cast(rollup_schema())
    return pa.concat_tables([rollups.filter(is_long).cast(rollup_schema()), whole])


@dataclass(frozen=True)
class _Spans:
    """Contributions to spans: `keys` number the pairs of process and name."""

    bins: NDArray[np.int64]
    keys: NDArray[np.int64]
    count: NDArray[np.int64]
    busy_s: NDArray[np.float64]
    most_s: NDArray[np.float64]
    nbytes: NDArray[np.int64]


class _Events:
    """Events with a known begin."""

    def __init__(self, layer: str, rows: pa.Table) -> None:
        import numpy as np

        name = rows[NAMES_OF_LAYERS[layer]].unify_dictionaries().combine_chunks()
        codes, dictionary = name.indices.to_numpy().astype(np.int64), name.dictionary
        if len(dictionary) > _MOST_NAMES:
            used, codes = np.unique(codes, return_inverse=True)
            dictionary = dictionary.take(arrow().array(used[:_MOST_NAMES]))
            codes = np.minimum(codes, _MOST_NAMES)
        self.names = [each[:_NAME_LENGTH] for each in dictionary.to_pylist()]
        if codes.max(initial=0) >= len(self.names):
            self.names.append(OTHER_NAMES)
        began, ended = rows["began_s"].to_numpy(), rows["ended_s"].to_numpy()
        is_known = np.abs(began) < LATEST_S
        chosen: Any = slice(None) if is_known.all() else is_known
        self.began = began[chosen]
        with np.errstate(invalid="ignore", over="ignore"):
            seconds = ended[chosen] - self.began
        self.seconds = np.where((seconds >= 0) & (seconds < LATEST_S), seconds, 0.0)
        has_weight, has_nbytes = (name in rows.column_names for name in ("weight", "nbytes"))
        ones = np.ones(len(self.began), np.int64)
        self.weight = np.maximum(rows["weight"].to_numpy()[chosen], 1) if has_weight else ones
        self.nbytes = np.maximum(rows["nbytes"].to_numpy()[chosen], 0) if has_nbytes else 0 * ones
        if has_nbytes and self.weight.max(initial=1) > 1:
            total = self.nbytes * self.weight.astype(np.float64)
            largest = np.minimum(total, _MOST_TOTAL).astype(np.int64)
            self.nbytes = np.where(total > _MOST_NUMBER, largest, self.nbytes * self.weight)
        processes, self._process_of = _numbered(rows["process"].to_numpy()[chosen])
        self._rank_of = np.zeros(len(self._process_of), np.int64)
        self._rank_of[processes] = rows["rank"].to_numpy()[chosen]
        self.keys = processes * len(self.names) + codes[chosen]

    @property
    def num_keys(self) -> int:
        """Number of pairs of process and name."""
        return len(self._process_of) * len(self.names)

    def process_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the process of each key."""
        return self._process_of[keys // len(self.names)]

    def rank_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank of each key."""
        return self._rank_of[keys // len(self.names)]


def _numbered(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers from 0 for equal values, and the values by number."""
    import numpy as np

    if not len(values):
        return values, values
    least, most = int(values.min()), int(values.max())
    if most - least > _MOST_DENSE:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), found
    return values - least, np.arange(least, most + 1)


def _spread(events: _Events, place: Any) -> list[_Spans]:
    """What the events at some places contribute to the spans of the lowest level that they were in."""
    import numpy as np

    width_s = WIDTHS_S[0]
    began, seconds = events.began[place], events.seconds[place]
    keys, weight, nbytes = events.keys[place], events.weight[place], events.nbytes[place]
    first = np.floor(began / width_s).astype(np.int64)
    last = np.floor((began + seconds) / width_s).astype(np.int64)
    spans = _Spans(first, keys, weight, seconds * weight, seconds, nbytes)
    crossing = np.flatnonzero(last > first)
    if not len(crossing):
        return [spans]
    spans.busy_s[crossing] = ((first[crossing] + 1) * width_s - began[crossing]) * weight[crossing]
    num_further = last[crossing] - first[crossing]
    event = np.repeat(crossing, num_further)
    offset = np.arange(len(event)) - np.repeat(np.cumsum(num_further) - num_further, num_further) + 1
    bins, nothing = first[event] + offset, np.zeros(len(event), np.int64)
    busy = (np.minimum(began[event] + seconds[event], (bins + 1) * width_s) - bins * width_s) * weight[event]
    return [spans, _Spans(bins, keys[event], nothing, busy, nothing.astype(np.float64), nothing)]


def _summed(parts: Sequence[_Spans], events: _Events) -> _Spans:
    """One row for each span and key."""
    import numpy as np

    parts = [each for each in parts if len(each.bins)] or list(parts[:1])
    if not len(parts[0].bins):
        return parts[0]
    least = min(int(each.bins.min()) for each in parts)
    num_cells = (max(int(each.bins.max()) for each in parts) - least + 1) * events.num_keys
    cells = [(each.bins - least) * events.num_keys + each.keys for each in parts]
    if num_cells > _MOST_DENSE + 4 * sum(map(len, cells)):
        found, places = np.unique(np.concatenate(cells), return_inverse=True)
        cells = np.split(places, np.cumsum([len(each) for each in cells])[:-1])
        num_cells = len(found)
    else:
        found = np.arange(num_cells)
    most_s, is_used = np.zeros(num_cells), np.zeros(num_cells, np.bool_)
    for each, own in zip(parts, cells, strict=True):
        np.maximum.at(most_s, own, each.most_s)
        is_used[own] = True
    found = found[is_used]

    def total(values: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        sums = [np.bincount(own, each, num_cells)[is_used] for own, each in zip(cells, values, strict=True)]
        return np.asarray(sum(sums), np.float64)

    return _Spans(
        found // events.num_keys + least, found % events.num_keys,
        np.rint(total([each.count for each in parts])).astype(np.int64), total([each.busy_s for each in parts]),
        most_s[is_used], np.rint(total([each.nbytes for each in parts])).astype(np.int64),
    )  # fmt: skip


def _long_rows(layer: str, events: _Events, is_long: NDArray[np.bool_]) -> pa.Table:
    import numpy as np

    began, seconds = events.began[is_long], events.seconds[is_long]
    bins, weight = np.zeros(len(began), np.int64), events.weight[is_long]
    spans = _Spans(bins, events.keys[is_long], weight, seconds * weight, seconds, events.nbytes[is_long])
    return _arrow_rows(layer, [LONG], spans, events, began, began + seconds)


def _arrow_rows(
    layer: str, levels: Sequence[int], spans: _Spans, events: _Events, began: Any = None, ended: Any = None
) -> pa.Table:
    """The same rows for several levels, from the one on that `spans` has the numbers of."""
    import numpy as np

    pa = arrow()
    schema, num_levels = rollup_schema(), len(levels)
    num_rows = num_levels * len(spans.bins)
    keys = np.tile(spans.keys, num_levels)
    nothing = np.zeros(num_rows)
    codes = pa.array(keys % max(len(events.names), 1), pa.int32())
    names = pa.DictionaryArray.from_arrays(codes, pa.array(events.names, pa.utf8()))
    bins = [spans.bins >> 2 * place for place in range(num_levels)]
    columns = {
        "level": np.repeat(np.array(levels, np.int8), len(spans.bins)),
        "bin": np.concatenate([*bins, spans.bins[:0]]),
        "layer": pa.repeat(pa.scalar(layer, pa.utf8()), num_rows), "process": events.process_of(keys),
        "rank": events.rank_of(keys), "name": names.dictionary_decode(),
        **{name: np.tile(getattr(spans, name), num_levels) for name in ("count", "busy_s", "most_s", "nbytes")},
        "began_s": nothing if began is None else began, "ended_s": nothing if ended is None else ended,
    }  # fmt: skip
    return pa.table([columns[name] for name in schema.names], schema=schema)
