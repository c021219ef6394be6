"""Runs that go on: what has changed in each of them since a moment, for pages that follow them.

A tick says for each span of time that has changed what its total is now. Whoever misses some gets the next ones or,
after many, all totals: a total replaces the one before, so nothing is counted twice.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from dataclasses import asdict, dataclass
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.requests import json_bytes
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.rollups import LATEST_S, LONG, WIDTHS_S

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.store.stored_run import StoredRun

KEPT_SPANS = 4096
"""Pages show the last ones of a run that goes on."""
_MOST_TICKS = 100
_SILENT_S = 15.0
"""A sender that says nothing for so long has gone."""
_LEVEL = 0
_MOST_OVER = 5
"""Of so many runs that are over it is known what pages that were cut off have missed."""


@dataclass(frozen=True)
class LiveLane:
    """The spans of a process and layer that have changed: columns of equal length."""

    process: int
    rank: int
    layer: str
    spans: list[int]
    count: list[int]
    busy_s: list[float]
    nbytes: list[int]


@dataclass(frozen=True)
class LiveTick:
    """What has changed.

    Args:
        is_whole: whether it is all that is known, not only what has changed.
        now_s: how far the run has come, in seconds since it began.
        width_s: length of a span.
        version: increases when tables without times, such as findings, have changed.
        lanes: with spans that have changed.
    """

    is_whole: bool
    now_s: float
    width_s: float
    version: int
    lanes: list[LiveLane]


@dataclass(frozen=True)
class NumberedTick:
    """A tick as it is sent."""

    number: int
    content: bytes


class LiveRun:
    """What pages that follow a run are sent; for all threads."""

    def __init__(self) -> None:
        self.is_local = False
        """Whether its sender is a thread of this process, which says when it ends."""
        self.ident = secrets.token_hex(4)
        """Ticks of a server that has ended have other numbers."""
        self.version = 0
        self.whole = ""
        """Name of the whole run in the store, when it is over and there is one."""
        self._lock = Lock()
        self._cells: dict[tuple[int, int, str], dict[int, list[Any]]] = {}
        self._changed: set[tuple[tuple[int, int, str], int]] = set()
        self._latest_s = -math.inf
        self._heard_s = monotonic()
        self._is_over = False
        self._number = 0
        self._ticks: deque[NumberedTick] = deque(maxlen=_MOST_TICKS)

    @property
    def is_over(self) -> bool:
        """Whether its sender has said that it is, or has gone."""
        return self._is_over or (not self.is_local and monotonic() - self._heard_s > _SILENT_S)

    @property
    def has_changed(self) -> bool:
        """Whether the next tick has spans."""
        return bool(self._changed)

    def end(self, whole: str) -> None:
        """Note that nothing more comes, and under which name the store has the whole run."""
        with self._lock:
            self.whole, self._is_over = whole, True

    def hear(self, now_s: float | None, *, is_over: bool = False) -> None:
        """Note that its sender is there.

        Args:
            now_s: how far the run has come; None: as far as its last event.
            is_over: whether nothing more comes.
        """
        with self._lock:
            self._heard_s = monotonic()
            self._is_over = is_over
            if now_s is not None and abs(now_s) <= LATEST_S:
                self._latest_s = max(self._latest_s, now_s)

    def add(self, rollup: pa.Table) -> None:
        """Add the roll-up of new rows."""
        compute = arrow().compute
        lowest = rollup.filter(compute.equal(rollup["level"], _LEVEL))
        sums = lowest.group_by(["process", "rank", "layer", "bin"], use_threads=False).aggregate(
            [("count", "sum"), ("busy_s", "sum"), ("nbytes", "sum")]
        )
        long_rows = rollup.filter(compute.equal(rollup["level"], LONG)).to_pylist()
        with self._lock:
            for row in sums.to_pylist():
                key = row["process"], row["rank"], row["layer"]
                self._change(key, row["bin"], row["count_sum"], row["busy_s_sum"], row["nbytes_sum"])
                self._latest_s = max(self._latest_s, (row["bin"] + 1) * WIDTHS_S[_LEVEL])
            for row in long_rows:
                self._spread(row)

    def tick(self) -> NumberedTick:
        """Return what has changed since the last tick."""
        with self._lock:
            changed: dict[tuple[int, int, str], list[int]] = {}
            for key, span in self._changed:
                changed.setdefault(key, []).append(span)
            self._changed.clear()
            self._forget()
            self._number += 1
            tick = NumberedTick(self._number, json_bytes(asdict(self._written(changed, is_whole=False))))
            self._ticks.append(tick)
            return tick

    def since(self, number: int) -> list[NumberedTick]:
        """Return the ticks after one, or all that is known if they are not kept any more."""
        with self._lock:
            if self._ticks and self._ticks[0].number <= number + 1 <= self._number + 1 and number:
                return [each for each in self._ticks if each.number > number]
            every = {key: sorted(cells) for key, cells in self._cells.items()}
            return [NumberedTick(self._number, json_bytes(asdict(self._written(every, is_whole=True))))]

    def _written(self, spans: dict[tuple[int, int, str], list[int]], *, is_whole: bool) -> LiveTick:
        lanes = []
        for key, own in spans.items():
            cells = [(span, self._cells[key][span]) for span in own if span in self._cells[key]]
            process, rank, layer = key
            lanes.append(
                LiveLane(process, rank, layer, [span for span, _ in cells], [cell[0] for _, cell in cells],
                         [round(cell[1], 9) for _, cell in cells], [cell[2] for _, cell in cells])
            )  # fmt: skip
        return LiveTick(is_whole, max(self._latest_s, 0.0), WIDTHS_S[_LEVEL], self.version, lanes)

    def _change(self, key: tuple[int, int, str], span: int, count: int, busy_s: float, nbytes: int) -> None:
        cell = self._cells.setdefault(key, {}).setdefault(span, [0, 0.0, 0])
        cell[0] += count
        cell[1] += busy_s
        cell[2] += nbytes
        self._changed.add((key, span))

    def _spread(self, row: dict[str, Any]) -> None:
        """Divide a long event among the spans that it was in."""
        width_s, weight = WIDTHS_S[_LEVEL], row["count"]
        key = row["process"], row["rank"], row["layer"]
        self._latest_s = max(self._latest_s, row["ended_s"])
        first, last = int(row["began_s"] // width_s), int(row["ended_s"] // width_s)
        for span in range(max(first, last - KEPT_SPANS), last + 1):
            own_s = min(row["ended_s"], (span + 1) * width_s) - max(row["began_s"], span * width_s)
            is_first = span == first
            self._change(key, span, weight if is_first else 0, weight * own_s, row["nbytes"] if is_first else 0)

    def _forget(self) -> None:
        least = int(self._latest_s // WIDTHS_S[_LEVEL]) - KEPT_SPANS if math.isfinite(self._latest_s) else 0
        for cells in self._cells.values():
            # In the order in which they came, which is about that of time.
            while cells and (first := next(iter(cells))) < least:
                del cells[first]


class LiveRuns:
    """The runs that go on."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._lock = Lock()

    def begin(self, run: StoredRun) -> LiveRun:
        """Return what pages that follow a run are sent; from here on it goes on."""
        with self._lock:
            if (found := self._runs.get(run.folder.name)) is None or found.is_over:
                over = [name for name, each in self._runs.items() if each.is_over]
                for name in over[:-_MOST_OVER]:
                    del self._runs[name]
                found = self._runs[run.folder.name] = LiveRun()
                run.on_rollup = found.add
            return found

    def find(self, run: StoredRun) -> LiveRun | None:
        """Return the same of a run that goes on; None: it does not."""
        found = self._runs.get(run.folder.name)
        return None if found is None or found.is_over else found

    def known(self, run: StoredRun) -> LiveRun | None:
        """Return the same of a run that goes on, or went on a while ago."""
        return self._runs.get(run.folder.name)

    def is_live(self, run: StoredRun) -> bool:
        """Return whether a run goes on."""
        return self.find(run) is not None
