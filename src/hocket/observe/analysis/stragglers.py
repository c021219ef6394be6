"""Ranks that others wait for, and what they did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.measure import median_interval
from hocket.observe.analysis.delays import imposed_waits
from hocket.observe.analysis.intervals import IntervalSet
from hocket.observe.analysis.operations import MESSAGES
from hocket.observe.analysis.regions import regions_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun, SavedProcess

UNFINISHED = "unfinished operations"
LAYERS = ("computation", "I/O", "messages", UNFINISHED, "waiting for a CPU", "not running")
"""What a late rank did since its previous collective, or before a message since its previous operation. "unfinished
operations": it did not run while asynchronous operations of its own went on. "waiting for a CPU": other processes had
it. "not running": it slept, was stopped, or waited for something that is not recorded."""
_MOST_REGIONS = 32
"""The longest ones are compared; a training has one for each action, stage and micro-batch."""
_CONFIDENCE = 0.9999
_LEAST_PARTS = 15
"""Fewer have no interval with this confidence."""
_NUM_PARTS = 30
"""Parts of a run, each of as many consecutive operations; their means are less alike than neighbouring operations."""
_WHOLE_SHARE, _LEAST_WHOLE_SHARE = 0.8, 0.25
"""Of the time between two samples that lies in ways; and of all ways, how much lies in such times."""
_LEAST_ON_CPU = 0.5
"""A process that had or wanted a CPU for more than this share of its time outside of collectives did nothing else."""


@dataclass(frozen=True)
class Straggler:
    """A rank that others waited for.

    Args:
        process: place in `ObservedRun.processes`.
        imposed_s: seconds that all other ranks together waited because of it: for it, or for a rank that was late
            because it had waited for this one itself.
        share: of all waits, 0 to 1.
        num_late: number of collectives and messages at which others waited for it.
        num_compared: number of collectives and messages that it took part in.
        longer_s: by how much its way to one of them was longer than the median of the others' ways; the median over 30
            parts of the run.
        low_s, high_s: interval of that median with a confidence of 99.99 %; infinite for fewer than 15 operations.
        layer: one of `LAYERS`: what took most of the time by which its way to these operations was longer than the
            others' way.
        by_layer: seconds of `imposed_s` for each of them.
        region: region of the program in which it spent most of that time; "" without regions.

    Examples:
        >>> from hocket import observe
        >>> late = observe.Straggler(3, 1.5, 0.9, 90, 100, 0.01, 0.009, 0.012, "I/O", {"I/O": 1.5}, "load")
        >>> late.layer
        'I/O'
    """

    process: int
    imposed_s: float
    share: float
    num_late: int
    num_compared: int
    longer_s: float
    low_s: float
    high_s: float
    layer: str
    by_layer: Mapping[str, float]
    region: str


def stragglers(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> tuple[Straggler, ...]:
    """Return the ranks that others waited for, the one with the longest waits first.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.
        waits: from `wait_states`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-ranks")
        >>> run = observe.open_run("run-without-ranks")
        >>> operations = observe.operations_of(run)
        >>> observe.stragglers(run, operations, observe.wait_states(run, operations))
        ()
    """
    import numpy as np

    rows = waits.rows
    if not len(rows):
        return ()
    imposed = imposed_waits(operations, waits, len(run.processes))
    if not imposed.sum():
        return ()
    ways = _Ways(run, operations, waits)
    longer = _beyond_others(ways.seconds, rows["group"])
    found = []
    for process in np.flatnonzero(imposed > 0):
        is_own = rows["process"] == process
        is_waited_for = (rows["late_process"] == process) & (rows["wait"] > 0)
        by_layer = ways.imposed_by_layer(int(process), float(imposed[process]))
        own = longer[np.flatnonzero(is_own)[np.argsort(ways.ends[is_own], kind="stable")]]
        parts = [float(part.mean()) for part in np.array_split(own, min(_NUM_PARTS, max(len(own), 1)))]
        low, high = median_interval(parts, _CONFIDENCE) if len(parts) >= _LEAST_PARTS else (-np.inf, np.inf)
        found.append(
            Straggler(
                process=int(process),
                imposed_s=float(imposed[process]),
                share=float(imposed[process] / imposed.sum()),
                num_late=len(np.unique(rows["group"][is_waited_for])),
                num_compared=int(is_own.sum()),
                longer_s=float(np.median(parts)) if len(own) else 0.0,
                low_s=low,
                high_s=high,
                layer=max(by_layer, key=lambda layer: by_layer[layer]),
                by_layer=by_layer,
                region=ways.region(int(process)),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.imposed_s))


def _beyond_others(values: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """How much more each rank has than the median of the others in its group."""
    import numpy as np

    counts = np.bincount(group)
    first = (np.cumsum(counts) - counts)[group]
    order = np.lexsort((values, group))
    ordered = values[order]
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    own = place - first
    num_others = counts[group] - 1
    # Without the value at `own`, all later ones move down by one place.
    low, high = (num_others - 1) // 2, num_others // 2
    others = (ordered[first + low + (low >= own)] + ordered[first + high + (high >= own)]) / 2
    return np.asarray(values - others)


class _Ways:
    """What each rank did on its way to each operation: since its previous collective, or before a message since its
    previous operation of any kind."""

    def __init__(self, run: ObservedRun, operations: RunOperations, waits: WaitStates) -> None:
        import numpy as np

        self._run = run
        self._rows = waits.rows
        self._regions_by_process: dict[int, dict[str, IntervalSet]] = {}
        rows = operations.rows
        self.ends = rows["begin"][self._rows["row"]]
        self._begin = _previous(operations)[self._rows["row"]]
        self.seconds = self.ends - self._begin
        self._covered = {layer: np.zeros(len(self._rows)) for layer in LAYERS}
        kinds = np.array(operations.kind_names)
        for process in np.unique(self._rows["process"]):
            is_own = self._rows["process"] == process
            way = self._begin[is_own], self.ends[is_own]
            of_process = rows[rows["process"] == process]
            is_message = np.isin(kinds[of_process["kind"]], MESSAGES)
            messages, unfinished = of_process[is_message], of_process[~is_message & of_process["is_async"]]
            io = io_of(run.processes[process])
            self._covered["I/O"][is_own] = io.covered(*way)
            both = IntervalSet(
                np.concatenate([io.begins, messages["begin"]]), np.concatenate([io.ends, messages["end"]])
            ).covered(*way)
            self._covered["messages"][is_own] = both - self._covered["I/O"][is_own]
            rest = way[1] - way[0] - both
            computing, waiting = _cpu_shares(run.processes[process], IntervalSet(*way))
            self._covered["computation"][is_own] = rest * computing
            self._covered["waiting for a CPU"][is_own] = rest * waiting
            idle = rest * (1 - computing - waiting)
            pending = np.minimum(idle, IntervalSet(unfinished["begin"], unfinished["end"]).covered(*way))
            self._covered[UNFINISHED][is_own] = pending
            self._covered["not running"][is_own] = idle - pending

    def imposed_by_layer(self, process: int, imposed_s: float) -> dict[str, float]:
        """Divide the waits for a process by what its ways were longer in than those of the others."""
        excess = {layer: float(self._excess(self._covered[layer], process).sum()) for layer in LAYERS}
        positive = {layer: max(seconds, 0.0) for layer, seconds in excess.items()}
        total = sum(positive.values())
        return {layer: imposed_s * seconds / total if total else 0.0 for layer, seconds in positive.items()}

    def region(self, process: int) -> str:
        """Return the region in which a process spent most of the time by which it was late."""
        import numpy as np

        best, best_s = "", 0.0
        rows = self._rows
        own = (rows["process"] == process) & (rows["late_process"] == process)
        lengths = {
            name: float(intervals.covered(self._begin[own], self.ends[own]).sum())
            for name, intervals in self._regions(process).items()
        }
        for name in sorted(lengths, key=lambda each: -lengths[each])[:_MOST_REGIONS]:
            intervals = self._regions(process)[name]
            covered = np.zeros(len(self._rows))
            for other in np.unique(self._rows["process"]):
                is_own = self._rows["process"] == other
                of_other = intervals if other == process else self._regions(int(other)).get(name)
                if of_other is not None:
                    covered[is_own] = of_other.covered(self._begin[is_own], self.ends[is_own])
            seconds = float(self._excess(covered, process).sum())
            if seconds > best_s:
                best, best_s = name, seconds
        return best

    def _regions(self, process: int) -> dict[str, IntervalSet]:
        if process not in self._regions_by_process:
            found = regions_of(self._run.processes[process])
            self._regions_by_process[process] = {name: IntervalSet(*times) for name, *times in found}
        return self._regions_by_process[process]

    def _excess(self, values: NDArray[np.float64], process: int) -> NDArray[np.float64]:
        """How much more a process has than the median of the others, at each operation where it was the last one."""
        import numpy as np

        rows = self._rows
        is_last = (rows["process"] == process) & (rows["late_process"] == process)
        groups = rows["group"][is_last]
        is_other = np.isin(rows["group"], groups) & (rows["process"] != process)
        others, place = np.unique(rows["group"][is_other], return_inverse=True)
        order = np.lexsort((values[is_other], place))
        counts = np.bincount(place, minlength=len(others))
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        ordered = values[is_other][order]
        medians = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
        return np.asarray(values[is_last] - medians)


def _previous(operations: RunOperations) -> NDArray[np.float64]:
    """For each operation, when its way began: when its process had come out of the operation before, or had gone on
    meanwhile. The first one has no way."""
    import numpy as np

    rows = operations.rows
    is_collective = ~np.isin(np.array(operations.kind_names)[rows["kind"]], MESSAGES)
    found = rows["begin"].copy()
    left = np.where(rows["is_async"] | np.isnan(rows["end"]), rows["begin"], rows["end"])
    for process in np.unique(rows["process"]):
        own = np.flatnonzero(rows["process"] == process)
        for places, is_way in ((own, ~is_collective[own]), (own[is_collective[own]], slice(None))):
            ordered = np.sort(left[places])
            begin = rows["begin"][places]
            # Of an asynchronous operation `left` is its own begin, which is not before it.
            before = np.where(
                rows["is_async"][places], ordered.searchsorted(begin), ordered.searchsorted(begin, "right")
            )
            found[places[is_way]] = np.where(before > 0, ordered[np.maximum(before - 1, 0)], begin)[is_way]
    return found


def io_of(process: SavedProcess) -> IntervalSet:
    import numpy as np

    events = process.events.get("io", np.zeros(0, [("t_begin", "<u8"), ("t_end", "<u8")]))
    is_ended = events["t_end"] > 0
    return IntervalSet(
        process.clock.seconds(events["t_begin"][is_ended]), process.clock.seconds(events["t_end"][is_ended])
    )


def _cpu_shares(process: SavedProcess, ways: IntervalSet) -> tuple[float, float]:
    """Return the shares of its ways in which a process computed, and in which it waited for a CPU.

    The kernel's counts are known at samples only, and between two of them the process was in collectives, too, or began
    or ended. So each is the most that it can be; together they are at most 1. Where samples lie whole in ways, as those
    of a late rank do, these say it well, and no others count.
    """
    import numpy as np

    rows = process.series[~np.isnan(process.series["cpu_s"])]
    times = process.clock.seconds_at_ns(rows["time_ns"])
    outside = ways.covered(times[:-1], times[1:])
    is_whole = outside >= _WHOLE_SHARE * np.diff(times)
    if outside[is_whole].sum() >= _LEAST_WHOLE_SHARE * outside.sum():
        outside = np.where(is_whole, outside, 0.0)
    total = float(outside.sum())
    if not total:
        return 1.0, 0.0
    waits = np.nan_to_num(np.diff(rows["cpu_wait_s"]))
    computing, waiting = (float(np.minimum(each, outside).sum()) / total for each in (np.diff(rows["cpu_s"]), waits))
    wanted = computing + waiting
    scale = 1 / wanted if wanted >= _LEAST_ON_CPU else 1.0
    return computing * scale, waiting * scale
