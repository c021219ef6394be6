"""Timelines as JSON of trace events, which ui.perfetto.dev, chrome://tracing and speedscope read.

Reference: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.observe.activity import operation_name, target_of
from hocket.observe.analysis.communicators import RunNames
from hocket.observe.analysis.operations import IN_FLIGHT
from hocket.observe.formats.lanes import divide_into_lanes
from hocket.observe.formats.stream import write_stream
from hocket.trace import EVENT_STATES, RINGS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import ObservedRun, SavedProcess

ENDINGS = (".json", ".json.gz")
_RINGS = ("program", "operations", "foreign", "transfers", "dask", "io", "process")
"""From the top of a process to its bottom."""
assert set(_RINGS) == set(RINGS)
_MOST_LANES = 1000
"""Lanes of a ring have numbers from so many times its place on."""
_SERIES = {"cpu_s": "CPU", "resident_nbytes": "memory"}
_US = 1e6
_BEFORE_END_US = 2e-3


def write_chrome(run: ObservedRun, path: Path) -> None:
    """Write all events of a run; the file is there as a whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file; with the ending .gz it is compressed.
    """
    write_stream(path, _pieces(run))


def _pieces(run: ObservedRun) -> Iterator[bytes]:
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    for number, event in enumerate(trace_events(run)):
        yield ((",\n" if number else "") + json.dumps(event)).encode()
    yield b"\n]}\n"


def trace_events(run: ObservedRun) -> Iterator[dict[str, Any]]:
    """Yield all events of a run as objects of the format; slices of a lane, which lie in one another, by their begin.

    Args:
        run: from `open_run`.
    """
    end_s = _end_of(run)
    messages = _Messages(run)
    for place, process in enumerate(run.processes):
        yield from _process_names(place, process)
        for ring in _RINGS:
            yield from _slices(place, process, ring, end_s, messages)
        yield from _counters(place, process)
    yield from messages.flows()


class _Messages:
    """Sends and receives of hocket: the n-th one of a rank to another one is the n-th from it there."""

    def __init__(self, run: ObservedRun) -> None:
        self._names = RunNames(run.processes)
        self._sends: dict[tuple[int, int, int, int], dict[str, Any]] = {}
        self._receives: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = []

    def add(self, name: str, event: np.void, slice_: dict[str, Any]) -> None:
        """Take note of a slice, if it is a message."""
        comm = int(event["comm"])
        run_comm, own = self._names.comm(slice_["pid"], comm), self._names.rank(slice_["pid"], comm)
        peer, number = int(event["peer"]), int(event["seq"])
        if name == "send":
            self._sends[run_comm, own, peer, number] = slice_
        elif name == "recv":
            self._receives.append(((run_comm, peer, own, number), slice_))

    def flows(self) -> Iterator[dict[str, Any]]:
        """Yield an arrow for each message whose both ends were recorded.

        It goes forward in time, else viewers drop it: from the begin of the send to just before the end of the receive,
        where what lies inside the receive is over, as an arrow ends in the innermost slice.
        """
        for number, (key, receive) in enumerate(self._receives):
            send = self._sends.get(key)
            if send is None or send["ts"] > receive["ts"] + receive["dur"]:  # not recorded; or clocks differ
                continue
            arrives = max(send["ts"], receive["ts"], receive["ts"] + receive["dur"] - _BEFORE_END_US)
            common = {"name": "message", "cat": "message", "id": number}
            yield common | {"ph": "s", "ts": send["ts"], "pid": send["pid"], "tid": send["tid"]}
            yield common | {"ph": "f", "bp": "e", "ts": arrives, "pid": receive["pid"], "tid": receive["tid"]}


def _process_names(place: int, process: SavedProcess) -> Iterator[dict[str, Any]]:
    owner = process.snapshot.owner
    rank = "" if owner.rank is None else f"rank {owner.rank}, "
    for name, value in (
        ("process_name", {"name": f"{rank}process {owner.pid} on {process.host}"}),
        ("process_labels", {"labels": owner.program}),
        ("process_sort_index", {"sort_index": place}),
    ):
        yield {"ph": "M", "name": name, "pid": place, "tid": 0, "args": value}


def _slices(
    place: int, process: SavedProcess, ring: str, end_s: float, messages: _Messages
) -> Iterator[dict[str, Any]]:
    """The events of one ring, after the names of their lanes; without counters and changes of sampling."""
    import numpy as np

    events = process.events.get(ring)
    if events is None or not len(events):
        return
    kinds = {int(kind): operation_name(ring, int(kind)) for kind in np.unique(events["kind"])}
    is_slice = np.isin(events["kind"], [kind for kind, name in kinds.items() if name not in ("counter", "sampling")])
    events = events[is_slice]
    begins, ends = _times(process, events, end_s)
    order = np.lexsort((-ends, begins))
    events, begins, ends = events[order], begins[order], ends[order]
    lanes = divide_into_lanes(begins, ends)
    first = _RINGS.index(ring) * _MOST_LANES
    for lane in range(int(lanes.max(initial=-1)) + 1):
        for name, value in (
            ("thread_name", {"name": ring if lane == 0 else f"{ring} {lane + 1}"}),
            ("thread_sort_index", {"sort_index": first + lane}),
        ):
            yield {"ph": "M", "name": name, "pid": place, "tid": first + lane, "args": value}
    for event, begin, end, lane in zip(events, begins.tolist(), ends.tolist(), lanes.tolist(), strict=True):
        where = {"ts": begin * _US, "dur": (end - begin) * _US, "pid": place, "tid": first + lane}
        shown = _slice(process, ring, event, kinds) | where
        if ring == "operations":
            messages.add(shown["name"], event, shown)
        yield shown


def _times(
    process: SavedProcess, events: NDArray[np.void], end_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Begins and ends; what has not completed lasts until the end of the run."""
    import numpy as np

    begins = process.clock.seconds(events["t_begin"])
    ends = np.where(np.isin(events["state"], IN_FLIGHT), end_s, process.clock.seconds(events["t_end"]))
    return begins, np.maximum(ends, begins)


def _slice(process: SavedProcess, ring: str, event: np.void, kinds: dict[int, str]) -> dict[str, Any]:
    name, target = kinds[int(event["kind"])], target_of(process.snapshot, ring, event)
    is_named = ring in ("program", "process")
    arguments: dict[str, Any] = {"state": EVENT_STATES[int(event["state"])]}
    if not is_named:
        arguments |= {"on": target, "nbytes": int(event["nbytes"]), "number": int(event["seq"])}
        names, comm = process.snapshot.names, int(event["comm"])
        if ring == "dask":
            arguments |= {"path": _native.DASK_PATH_NAMES[int(event["backend"])], "queue": int(event["aux"])}
        elif ring != "io":
            arguments["library"] = names.get(("backend", comm, int(event["backend"])), "")
            if event["peer"] >= 0:
                arguments["peer"] = int(event["peer"])
            if event["algorithm"]:
                arguments["algorithm"] = names.get(("algorithm", comm, int(event["algorithm"])), "")
    if event["weight_log2"]:
        arguments["stands for"] = 1 << int(event["weight_log2"])
    return {"ph": "X", "name": target if is_named else name, "cat": ring, "args": arguments}


def _counters(place: int, process: SavedProcess) -> Iterator[dict[str, Any]]:
    """CPU in processors and memory in bytes over time."""
    import numpy as np

    rows = process.series
    times = process.clock.seconds_at_ns(rows["time_ns"])
    for field, name in _SERIES.items():
        values = rows[field]
        if field == "cpu_s" and len(rows) > 1:
            values = np.append(np.diff(values) / np.maximum(np.diff(times), 1e-9), 0.0)
        for at, value in zip(times.tolist(), values.tolist(), strict=True):
            if value == value:  # a number that could not be read is no point
                yield {"ph": "C", "name": name, "pid": place, "tid": 0, "ts": at * _US, "args": {name: value}}


def _end_of(run: ObservedRun) -> float:
    """When the last process was last seen."""
    ends = [
        float(process.clock.seconds(events["t_end"].max()))
        for process in run.processes
        for events in process.events.values()
        if len(events)
    ]
    samples = [
        float(each.clock.seconds_at_ns(each.series["time_ns"].max())) for each in run.processes if len(each.series)
    ]
    return max((*ends, *samples), default=0.0)
