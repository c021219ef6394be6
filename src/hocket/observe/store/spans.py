"""Which spans of time answer a question about a window, and which times a run has events in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.rollups import LATEST_S, LONG, WIDTHS_S

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_SPANS = 100_000
_MOST_PARTS = 5_000_000
"""Long events are divided into so many parts at most for one answer; more make its spans wider."""


@dataclass(frozen=True)
class Extent:
    """What roll-ups have.

    Args:
        least_s, most_s: the begin of the first and the end of the last event, to a span; none: the first is later.
        num_long: how many long events there are.
    """

    least_s: float = math.inf
    most_s: float = -math.inf
    num_long: int = 0

    @property
    def limits(self) -> tuple[float, float]:
        """Begin and end; (0, 0) if there are no events."""
        if self.least_s > self.most_s:
            return 0.0, 0.0
        return max(self.least_s, -LATEST_S), min(self.most_s, LATEST_S)

    def joined(self, other: Extent) -> Extent:
        """Return what both have."""
        return Extent(min(self.least_s, other.least_s), max(self.most_s, other.most_s), self.num_long + other.num_long)


@dataclass(frozen=True)
class ChosenSpans:
    """The spans that answer a question.

    Args:
        level: of the roll-ups.
        first, after: the number of the first one, and that after the last one.
        num_long: how many long events are in the window.
    """

    level: int
    first: int
    after: int
    num_long: int

    @property
    def width_s(self) -> float:
        """Length of a span."""
        return float(WIDTHS_S[self.level])

    @property
    def begin_s(self) -> float:
        """Begin of the first one."""
        return self.first * self.width_s

    @property
    def end_s(self) -> float:
        """End of the last one."""
        return self.after * self.width_s

    @property
    def parameters(self) -> dict[str, float]:
        """Of the SQL of `sql_of`."""
        found: dict[str, float] = {"level": self.level, "first": self.first, "after": self.after}
        return found | ({"width_s": self.width_s} if self.num_long else {})


def choose_spans(
    begin_s: float | None, end_s: float | None, num_spans: int, limits: tuple[float, float],
    num_long_in: Callable[[float, float], int],
) -> ChosenSpans:  # fmt: skip
    """Return the spans of the lowest level with so few of them, and so few parts of long events.

    Args:
        begin_s, end_s: window in seconds since the run began; None: from the first or to the last event.
        num_spans: at most so many.
        limits: of all events.
        num_long_in: returns how many long events a window has.

    Raises:
        InvalidArgument: the window is none.
    """
    least, most = limits
    begin = least if begin_s is None else begin_s
    end = max(most, begin) if end_s is None else end_s
    if not (abs(begin) <= LATEST_S and abs(end) <= LATEST_S and begin <= end):
        raise InvalidArgument(f"a window must begin before it ends, not {begin:g} and {end:g}")
    if not 1 <= num_spans <= _MOST_SPANS:
        raise InvalidArgument(f"a window has 1 to {_MOST_SPANS} spans, not {num_spans}")
    num_long = num_long_in(begin, end)
    for level, width_s in enumerate(WIDTHS_S):
        found = ChosenSpans(level, int(begin // width_s), int(-(-end // width_s)), num_long)
        count = found.after - found.first
        if count <= num_spans and num_long * count <= _MOST_PARTS:
            break
    return found


def extent_of(rollups: pa.Table) -> Extent:
    """Return what roll-ups have."""
    compute, level = arrow().compute, rollups["level"]
    found = Extent()
    bins = rollups["bin"].filter(compute.equal(level, 0))
    if len(bins):
        found = Extent(*seconds_of(*compute.min_max(bins).as_py().values()))
    long_events = rollups.filter(compute.equal(level, LONG))
    if long_events.num_rows:
        begin_s, end_s = compute.min(long_events["began_s"]).as_py(), compute.max(long_events["ended_s"]).as_py()
        found = found.joined(Extent(begin_s, end_s, long_events.num_rows))
    return found


def seconds_of(first: int, last: int) -> tuple[float, float]:
    """Return the begin and the end of spans of the lowest level."""
    return first * WIDTHS_S[0], (last + 1) * WIDTHS_S[0]
