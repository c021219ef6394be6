"""Runs that go on: what has changed in each of them since a moment, for pages that follow them.

A tick says for each span of time that has changed what its total is now. Whoever misses some gets the next ones or,
after many, all totals: a total replaces the one before, so nothing is counted twice.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.requests import json_bytes
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.rollups import LATEST_S, LONG, MOST_SUM, WIDTHS_S, saturated_sums

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from hocket.observe.store.interface import RunInStore

KEPT_SPANS = 1024
"""Pages show the last minute of a run that goes on."""
_MOST_TICKS = 200
_SILENT_S = 15.0
"""A sender that says nothing for so long has gone."""
MOST_SINGLE = 64
"""More processes are shown by host."""
_NO_RANK = 1 << 40
_Key = tuple[int, str, str]
"""The place of a lane, its label and its layer."""
_LEVEL = 0
_MOST_OVER = 5
"""Of so many runs that are over it is known what pages that were cut off have missed."""


@dataclass(frozen=True)
class LiveLane:
    """The spans that have changed of a layer of a process or, with many processes, of a host.

    Args:
        label: such as "rank 3", or the name of the host.
        place: lanes are shown in the order of these.
        layer: of the program.
        num_processes: how many it stands for.
        spans, count, busy_s, nbytes: columns of equal length.
    """

    label: str
    place: int
    layer: str
    num_processes: int
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


class _LatestSpans:
    """The last spans of a process and layer, each in the place of its number modulo their number."""

    def __init__(self) -> None:
        import numpy as np

        self.span = np.full(KEPT_SPANS, np.iinfo(np.int64).min)
        self.count, self.nbytes = (np.zeros(KEPT_SPANS, np.int64) for _ in range(2))
        self.busy_s = np.zeros(KEPT_SPANS)

    def add(self, span: int, count: int, busy_s: float, nbytes: int) -> bool:
        """Add to a span, up to `MOST_SUM`; return whether it is still one of the last."""
        place = span % KEPT_SPANS
        if self.span[place] > span:
            return False
        if self.span[place] < span:
            self.span[place] = span
            self.count[place] = self.nbytes[place] = self.busy_s[place] = 0
        self.count[place] = min(int(self.count[place]) + count, MOST_SUM)
        self.busy_s[place] += busy_s
        self.nbytes[place] = min(int(self.nbytes[place]) + nbytes, MOST_SUM)
        return True

    def written(self, key: _Key, num_processes: int, spans: NDArray[np.int64]) -> LiveLane:
        """Return some of the spans, as far as they are still among the last ones."""
        spans = spans[self.span[spans % KEPT_SPANS] == spans]
        places = spans % KEPT_SPANS
        place, label, layer = key
        return LiveLane(label, place, layer, num_processes, spans.tolist(), self.count[places].tolist(),
                        self.busy_s[places].round(9).tolist(), self.nbytes[places].tolist())  # fmt: skip

    @property
    def known(self) -> NDArray[np.int64]:
        """All spans, in the order of time."""
        import numpy as np

        return np.sort(self.span[self.span > np.iinfo(np.int64).min])


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
        self._hosts: dict[int, str] = {}
        """Of each process."""
        self._sizes: Counter[str] = Counter()
        """How many processes each host has."""
        self._first_of_rank: dict[int, int] = {}
        self._lanes: dict[_Key, _LatestSpans] = {}
        self._is_renewed = False
        self._changed: dict[_Key, set[int]] = {}
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
        return bool(self._changed) or self._is_renewed

    def end(self, whole: str) -> None:
        """Note that nothing more comes, and under which name the store has the whole run."""
        with self._lock:
            self.whole, self._is_over = whole, True

    def change(self) -> None:
        """Note that tables without times have changed."""
        with self._lock:
            self.version += 1
            self._is_renewed = True

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

    def add(self, rollup: pa.Table, rows: pa.Table) -> None:
        """Add the roll-up of new rows, and the rows."""
        compute = arrow().compute
        found = compute.unique(rows["process"]).to_pylist() if "host" in rows.column_names else []
        if not self._hosts.keys() >= {*found}:
            self._meet(rows.select(["process", "host"]).group_by(["process", "host"]).aggregate([]).to_pylist())
        lowest = rollup.filter(compute.equal(rollup["level"], _LEVEL))
        parts = [("count", "sum"), ("busy_s", "sum"), ("nbytes", "sum")]
        sums = saturated_sums(lowest, ["process", "rank", "layer", "bin"], parts)
        long_rows = rollup.filter(compute.equal(rollup["level"], LONG)).to_pylist()
        with self._lock:
            for row in sums.to_pylist():
                self._change(self._key_of(row), row["bin"], row["count_sum"], row["busy_s_sum"], row["nbytes_sum"])
                self._latest_s = max(self._latest_s, (row["bin"] + 1) * WIDTHS_S[_LEVEL])
            for row in long_rows:
                self._spread(row)

    def tick(self) -> NumberedTick:
        """Return what has changed since the last tick."""
        import numpy as np

        with self._lock:
            lanes = [
                self._lanes[key].written(key, self._num_processes(key), np.array(sorted(spans), np.int64))
                for key, spans in self._changed.items()
            ]
            self._changed.clear()
            self._is_renewed = False
            self._number += 1
            tick = NumberedTick(self._number, self._written(lanes, is_whole=False))
            self._ticks.append(tick)
            return tick

    def since(self, number: int) -> list[NumberedTick]:
        """Return the ticks after one, or all that is known if they are not kept any more."""
        with self._lock:
            if self._ticks and self._ticks[0].number <= number + 1 <= self._number + 1 and number:
                return [each for each in self._ticks if each.number > number]
            lanes = [spans.written(key, self._num_processes(key), spans.known) for key, spans in self._lanes.items()]
            return [NumberedTick(self._number, self._written(lanes, is_whole=True))]

    def _written(self, lanes: list[LiveLane], *, is_whole: bool) -> bytes:
        tick = LiveTick(is_whole, max(self._latest_s, 0.0), WIDTHS_S[_LEVEL], self.version, lanes)
        return json_bytes(tick)

    def _meet(self, rows: list[dict[str, Any]]) -> None:
        """Note the hosts of processes; as soon as there are many, lanes are those of hosts."""
        with self._lock:
            was_by_host = self._is_by_host
            self._hosts |= {row["process"]: str(row["host"]) for row in rows}
            self._sizes = Counter(self._hosts.values())
            if self._is_by_host and not was_by_host:
                self._lanes.clear()
                self._changed.clear()
                self._ticks.clear()  # whoever follows gets all that is known from here on

    @property
    def _is_by_host(self) -> bool:
        return len(self._hosts) > MOST_SINGLE

    def _key_of(self, row: dict[str, Any]) -> _Key:
        process, rank, layer = row["process"], row["rank"], row["layer"]
        if self._is_by_host:
            host = self._hosts.get(process, "")
            return [*self._sizes].index(host) if host in self._sizes else len(self._sizes), host, layer
        if rank < 0:
            return _NO_RANK + process, f"process {process}", layer
        # Ranks of two jobs may have the same number.
        is_first = self._first_of_rank.setdefault(rank, process) == process
        return rank, f"rank {rank}" if is_first else f"rank {rank} (process {process})", layer

    def _num_processes(self, key: _Key) -> int:
        return max(self._sizes[key[1]], 1) if self._is_by_host else 1

    def _change(self, key: _Key, span: int, count: int, busy_s: float, nbytes: int) -> None:
        if self._lanes.setdefault(key, _LatestSpans()).add(span, count, busy_s, nbytes):
            self._changed.setdefault(key, set()).add(span)

    def _spread(self, row: dict[str, Any]) -> None:
        """Divide a long event among the spans that it was in."""
        width_s, weight = WIDTHS_S[_LEVEL], row["count"]
        key = self._key_of(row)
        self._latest_s = max(self._latest_s, row["ended_s"])
        first, last = int(row["began_s"] // width_s), int(row["ended_s"] // width_s)
        for span in range(max(first, last - KEPT_SPANS), last + 1):
            own_s = min(row["ended_s"], (span + 1) * width_s) - max(row["began_s"], span * width_s)
            is_first = span == first
            self._change(key, span, weight if is_first else 0, weight * own_s, row["nbytes"] if is_first else 0)


class LiveRuns:
    """The runs that go on."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._lock = Lock()

    def begin(self, run: RunInStore) -> LiveRun:
        """Return what pages that follow a run are sent; from here on it goes on."""
        with self._lock:
            if (found := self._runs.get(run.name)) is None or found.is_over:
                over = [name for name, each in self._runs.items() if each.is_over]
                for name in over[:-_MOST_OVER]:
                    del self._runs[name]
                found = self._runs[run.name] = LiveRun()
                run.on_rollup = found.add
            return found

    def find(self, run: RunInStore) -> LiveRun | None:
        """Return the same of a run that goes on; None: it does not."""
        found = self._runs.get(run.name)
        return None if found is None or found.is_over else found

    def known(self, run: RunInStore) -> LiveRun | None:
        """Return the same of a run that goes on, or went on a while ago."""
        return self._runs.get(run.name)

    def is_live(self, run: RunInStore) -> bool:
        """Return whether a run goes on."""
        return self.find(run) is not None
