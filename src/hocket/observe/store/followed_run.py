"""What a run that goes on has saved since the last look, as rows of its tables of events, and what it does now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING

from hocket.clock import ClockReading
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.unfinished import LONG_S, UnfinishedOperation, unfinished_operations
from hocket.observe.completeness import unavailable
from hocket.observe.one_agent import is_alive
from hocket.observe.run_clock import RunClock
from hocket.observe.saved import (
    ObservedRun,
    RunDescription,
    SavedProcess,
    agent_memory,
    follow,
    load_hosts,
    process_order,
    recorders_of,
    saved_events,
    saved_layout,
)
from hocket.observe.series import no_process_rows
from hocket.observe.store.run_tables import event_tables
from hocket.trace import RINGS, RecorderSnapshot, are_events

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.store.run_tables import Columns

_MOST_NBYTES = 64 << 20
"""Of one file that are read at once; the rest comes at the next look."""
_ALIVE_S = 1.0
_LATEST_EVENTS = 256
"""Of each ring: enough for what is in flight."""
_IO = unavailable("the run goes on")


@dataclass(frozen=True)
class FollowedRows:
    """What is new.

    Args:
        tables: rows of tables of events.
        now_s: how far the run has come, in seconds since it began.
        is_over: whether the run has ended, or its agent was killed, and nothing more comes.
    """

    tables: dict[str, Columns]
    now_s: float
    is_over: bool


def goes_on(folder: Path) -> bool:
    """Return whether the agent that records a run lives: it waits for other hosts when the command has ended."""
    memory = agent_memory(folder)
    return memory is not None and is_alive(memory)


def read_latest(folder: Path) -> tuple[ObservedRun, float]:
    """Read what the processes of a run did last, completed or not, from the memory of those that run.

    It takes as long for a run of days as for one of seconds. Of each process the series and the older events are
    missing.

    Args:
        folder: of the run.

    Returns:
        The run, and the present in seconds since it began.

    Raises:
        RecorderError: the folder has no run; names the file.
    """
    found = load_hosts(folder, [])
    first = found[folder][0]
    processes = [
        _process(
            name, snapshot, description, _clock(description, first), is_partial=each != folder and memory is not None
        )
        for each, (description, memory) in found.items()
        for name, snapshot in recorders_of(each, memory, None if each == folder else [], _LATEST_EVENTS)
    ]
    processes.sort(key=process_order)
    now_s = float(_clock(first, first).seconds_at_ns(monotonic_ns()))
    return ObservedRun(folder, first, tuple(processes)), now_s


def under_way(folder: Path) -> tuple[UnfinishedOperation, ...]:
    """Return what the ranks of a run that goes on have been in for a second or more, the longest first; of one that is
    over nothing.

    Args:
        folder: of the run.

    Raises:
        RecorderError: the folder has no run; names the file.
    """
    if not goes_on(folder):
        return ()
    run, now_s = read_latest(folder)
    return tuple(each for each in unfinished_operations(run, operations_of(run), now_s) if each.seconds >= LONG_S)


def _clock(description: RunDescription, first: RunDescription) -> RunClock:
    readings = [ClockReading(*each) for each in description.readings]
    return RunClock(description.anchors, readings, first.anchors[0][1])


def _process(
    name: str, snapshot: RecorderSnapshot, description: RunDescription, clock: RunClock, is_partial: bool = False
) -> SavedProcess:
    """A process with the events that were read of its recorder."""
    events = {ring: saved_events(each) for ring, each in snapshot.rings.items()}
    lost = {ring: each.next_place - len(each.events) for ring, each in snapshot.rings.items()}
    return SavedProcess(name, snapshot, events, lost, _IO, no_process_rows(), (), description.host, clock, is_partial)


class RunFollower:
    """Reads the folder of a run again and again; for one thread.

    Args:
        folder: of a run that goes on, or has ended.

    Attributes:
        places: numbers of processes by host and name, in the order in which they were seen.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._asked_s = monotonic()
        self.places: dict[tuple[str, str], int] = {}
        self._processes: dict[tuple[str, str], SavedProcess] = {}

    def look(self) -> FollowedRows:
        """Return what is new.

        Raises:
            RecorderError: the folder has no run; names the file.
        """
        follow(self._folder)
        found = load_hosts(self._folder, [])
        first, memory = found[self._folder]
        fresh: dict[tuple[str, str], dict[str, NDArray[np.void]]] = {}
        for folder, (description, host_memory) in found.items():
            if grown := [*self._grown(folder)]:
                # Events that come meanwhile may have names that these heads lack: they are read at the next look.
                clock = _clock(description, first)
                self._read_heads(folder, host_memory, description, clock, {name for name, *_ in grown})
                for name, ring, path, size in grown:
                    if (description.host, name) in self._processes:
                        fresh.setdefault((description.host, name), {})[ring] = self._read(path, ring, size)
        agent = memory or agent_memory(self._folder)  # when the command has ended, it may wait for other hosts
        now_s = float(_clock(first, first).seconds_at_ns(monotonic_ns())) if agent else 0.0
        is_over = not fresh and (agent is None or self._has_lost(agent))
        return FollowedRows(self._tables(first, fresh) if fresh else {}, now_s, is_over)

    def _has_lost(self, memory: Path) -> bool:
        """Whether the agent was killed: what it has saved is all that there will be."""
        if monotonic() < self._asked_s + _ALIVE_S:
            return False
        self._asked_s = monotonic()
        return not is_alive(memory)

    def _grown(self, folder: Path) -> Iterator[tuple[str, str, Path, int]]:
        """The process, ring, path and size of each file that has become longer."""
        record_nbytes = saved_layout().itemsize
        with os.scandir(folder) as entries:
            for entry in entries:
                name, _, ring = entry.name.rpartition(".")
                if ring not in RINGS or not name:
                    continue
                path = Path(entry.path)
                if (size := entry.stat().st_size) >= self._offsets.get(path, 0) + record_nbytes:
                    yield name, ring, path, size

    def _read_heads(
        self, folder: Path, memory: Path | None, description: RunDescription, clock: RunClock, names: set[str]
    ) -> None:
        """Read the names of communicators and files anew, of processes with new events."""
        new = [
            _process(name, snapshot, description, clock)
            for name, snapshot in recorders_of(folder, memory, None if folder == self._folder else [], 0)
            if name in names
        ]
        for process in sorted(new, key=process_order):
            self.places.setdefault((process.host, process.name), len(self.places))
            self._processes[process.host, process.name] = process

    def _read(self, path: Path, ring: str, size: int) -> NDArray[np.void]:
        import numpy as np

        layout, offset = saved_layout(), self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(min(size - offset, _MOST_NBYTES // layout.itemsize * layout.itemsize))
        whole = len(content) // layout.itemsize * layout.itemsize
        self._offsets[path] = offset + whole
        events = np.frombuffer(content[:whole], layout)
        return events[are_events(ring, events)]

    def _tables(
        self, description: RunDescription, fresh: dict[tuple[str, str], dict[str, NDArray[np.void]]]
    ) -> dict[str, Columns]:
        processes = tuple(
            replace(self._processes[key], events=fresh.get(key, {}))
            for key in sorted(self.places, key=self.places.get)  # type: ignore[arg-type]
        )
        run = ObservedRun(self._folder, description, processes)
        tables = event_tables(run, operations_of(run))
        return {table: columns for table, columns in tables.items() if len(next(iter(columns.values())))}
