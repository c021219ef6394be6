"""Which rank caused a wait in the first place: a rank may be late only because it has waited for another one.

Waits are handed on as in Böhme, Geimer, Wolf, Arnold, Identifying the root causes of wait states in large-scale
parallel applications (2010): since the late and the waiting rank were last at one point, the late rank has computed
longer, has waited itself, or both. What it computed longer is its own delay; for what it waited, those ranks are to
blame that are to blame for these waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates

_TRACED_SHARE = 0.99
"""Of all waits, the longest are traced back; the rest counts for the rank that came last."""


def imposed_waits(operations: RunOperations, waits: WaitStates, num_processes: int) -> NDArray[np.float64]:
    """Return for each process how many seconds the others waited because of it.

    Args:
        operations: from `operations_of`.
        waits: from `wait_states`.
        num_processes: number of processes of the run.
    """
    import numpy as np

    rows = waits.rows
    if not len(rows):
        return np.zeros(num_processes)
    is_traced = rows["wait"] >= _threshold(rows["wait"])
    direct = np.where(is_traced, 0.0, rows["wait"])
    imposed = np.bincount(rows["late_process"], weights=direct, minlength=num_processes).astype(np.float64)
    tracer = _Tracer(operations, waits, num_processes)
    starts = np.flatnonzero(np.diff(rows["group"], prepend=-1))
    ends = np.append(starts[1:], len(rows))
    begin = operations.rows["begin"][rows["row"]]
    arrival = np.maximum.reduceat(begin, starts)
    for place in np.argsort(arrival, kind="stable"):
        imposed += tracer.trace(range(starts[place], ends[place]), is_traced)
    return np.asarray(imposed)


def _threshold(waits: NDArray[np.float64]) -> float:
    import numpy as np

    ordered = np.sort(waits)[::-1]
    covered = np.cumsum(ordered)
    place = int(np.searchsorted(covered, _TRACED_SHARE * covered[-1])) if covered[-1] > 0 else 0
    return max(float(ordered[min(place, len(ordered) - 1)]), 1e-12)


class _Track:
    """The operations of one process in the order of their begins."""

    def __init__(self, begin: NDArray[np.float64], end: NDArray[np.float64], wait: NDArray[np.float64]) -> None:
        import numpy as np

        self.begin = begin
        self.end = np.maximum.accumulate(end)
        # Operations may overlap, such as the two sides of an exchange.
        before = np.append(begin[:1], self.end[:-1])
        self._inside = np.append(0.0, np.cumsum(np.maximum(self.end - np.maximum(before, begin), 0.0)))
        self._waited = np.append(0.0, np.cumsum(wait))

    def own_s(self, after: int, until: int) -> float:
        """Seconds outside of operations, from the end of one operation to the begin of another one."""
        begun = self.begin[0] if after < 0 else self.end[after]
        return max(float(self.begin[until] - begun - (self._inside[until] - self._inside[after + 1])), 0.0)

    def last_before(self, place: int) -> int:
        """Place of the last operation that had ended when this one began; -1: none."""
        return int(self.end.searchsorted(self.begin[place], side="right")) - 1

    def last_inside(self, place: int) -> int:
        """Place of the last operation that began before this one had ended."""
        return max(int(self.begin.searchsorted(self.end[place])) - 1, place)

    def waited_s(self, after: int, until: int) -> float:
        """Seconds of waits in the operations between two."""
        return float(self._waited[until] - self._waited[after + 1])


class _Tracer:
    def __init__(self, operations: RunOperations, waits: WaitStates, num_processes: int) -> None:
        import numpy as np

        self._rows = waits.rows
        self._num_processes = num_processes
        ops = operations.rows[waits.rows["row"]]
        self._comm = ops["comm"]
        self._is_message = np.bincount(waits.rows["group"])[waits.rows["group"]] == 2
        end = np.where(ops["is_async"] | np.isnan(ops["end"]), ops["begin"], ops["end"])
        self._place = np.zeros(len(ops), np.int64)
        """Of each row among the operations of its process."""
        self._tracks: dict[int, _Track] = {}
        for process in np.unique(waits.rows["process"]):
            own = np.flatnonzero(waits.rows["process"] == process)
            own = own[np.argsort(ops["begin"][own], kind="stable")]
            self._place[own] = np.arange(len(own))
            self._tracks[int(process)] = _Track(ops["begin"][own], end[own], waits.rows["wait"][own])
        self._blame: dict[int, tuple[list[int], list[NDArray[np.float64]]]] = defaultdict(lambda: ([], []))
        """Of each process, the places of its traced waits and who is to blame for them, in seconds."""
        self._last: dict[tuple[int, int, int], int] = {}
        """Place of the operation after which a process was last at one point with others: in a communicator, or with a
        process."""

    def trace(self, group: range, is_traced: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return how much of a group's waits each process caused; groups come in the order of their last arrivals."""
        import numpy as np

        found = np.zeros(self._num_processes)
        late = int(self._rows["late_process"][group.start])
        (late_row,) = (row for row in group if self._rows["process"][row] == late)
        for row in group:
            if is_traced[row] and self._rows["wait"][row] > 0 and row != late_row:
                blame = self._blame_for(row, late_row)
                places, vectors = self._blame[int(self._rows["process"][row])]
                at = bisect_left(places, int(self._place[row]))
                places.insert(at, int(self._place[row]))
                vectors.insert(at, blame)
                found += blame
        self._synchronise(group, late_row)
        return found

    def _synchronise(self, group: range, late_row: int) -> None:
        """Take note of what brings ranks to one point in time: a collective all of them, a message only a receiver that
        has waited and the sender."""
        for row in group:
            process, place = int(self._rows["process"][row]), int(self._place[row])
            if not self._is_message[row]:
                self._last[process, int(self._comm[row]), -1] = place
            elif self._rows["wait"][row] > 0:
                late = int(self._rows["process"][late_row])
                # Both sides of an exchange overlap: what the receiver waits in the other side is over as well, and what
                # the sender waits there comes after.
                self._last[process, -1, late] = self._tracks[process].last_inside(place)
                self._last[late, -1, process] = self._tracks[late].last_before(int(self._place[late_row]))

    def _blame_for(self, row: int, late_row: int) -> NDArray[np.float64]:
        import numpy as np

        waiting, late = int(self._rows["process"][row]), int(self._rows["process"][late_row])
        comm, seconds = int(self._comm[row]), float(self._rows["wait"][row])
        segments = [
            (max(self._last.get((own, comm, -1), -1), self._last.get((own, -1, other), -1)), int(self._place[own_row]))
            for own, other, own_row in ((late, waiting, late_row), (waiting, late, row))
        ]
        mine, theirs = (self._tracks[own] for own in (late, waiting))
        longer_s = max(mine.own_s(*segments[0]) - theirs.own_s(*segments[1]), 0.0)
        waited_s = max(mine.waited_s(*segments[0]) - theirs.waited_s(*segments[1]), 0.0)
        blame = np.zeros(self._num_processes)
        inherited = self._blame_between(late, *segments[0]) if waited_s > 0 else blame
        if waited_s > 0 and inherited.sum() > 0:
            handed_on = waited_s / (waited_s + longer_s)
            blame += seconds * handed_on * inherited / inherited.sum()
            seconds *= 1 - handed_on
        blame[late] += seconds
        return blame

    def _blame_between(self, process: int, after: int, until: int) -> NDArray[np.float64]:
        import numpy as np

        places, vectors = self._blame[process]
        return np.asarray(
            sum(vectors[bisect_left(places, after + 1) : bisect_left(places, until)], np.zeros(self._num_processes))
        )
