"""A recorded run as tables of columns: what SQL and other tools see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.observe.activity import operation_name, target_of
from hocket.observe.analysis.breakdown import breakdown
from hocket.observe.analysis.choices import choices_of
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.connections import RunConnection, connections_of
from hocket.observe.analysis.conservation import conservation
from hocket.observe.analysis.efficiency import efficiencies
from hocket.observe.analysis.findings import findings_in
from hocket.observe.analysis.hangs import state_of
from hocket.observe.analysis.links import LinkLoad, link_loads
from hocket.observe.analysis.matrix import communication_matrix
from hocket.observe.analysis.observations import observations_of
from hocket.observe.analysis.operations import kind_names, operations_of
from hocket.observe.analysis.regions import regions_of
from hocket.observe.analysis.totals import COMMUNICATION, RunTotals, totals_of
from hocket.observe.analysis.unfinished import unfinished_operations
from hocket.observe.analysis.waits import wait_states
from hocket.observe.completeness import describe_io
from hocket.observe.saved import saved_layout
from hocket.observe.series import PROCESS_NUMBERS, SERIES_STATES
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, NUMPY_TYPES, TABLE_COLUMNS, TEXT
from hocket.trace import EVENT_STATES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun, SavedProcess

Columns = Mapping[str, "NDArray[Any]"]

_MOST_INTEGER = (1 << 63) - 1
"""Of a table."""


def run_tables(run: ObservedRun) -> dict[str, Columns]:
    """Return all tables of a run by name: columns of equal length, with the names and types of `TABLE_COLUMNS`.

    Args:
        run: from `open_run`.
    """
    operations = operations_of(run)
    unfinished = unfinished_table(run, operations)
    return {**derived_tables(run, operations), **unfinished, **event_tables(run, operations)}


def event_tables(run: ObservedRun, operations: RunOperations) -> dict[str, Columns]:
    """Return the tables whose rows are events with a begin and an end."""
    return _typed({
        "operations": _operations(run, operations),
        "transfers": _events(run, "transfers"),
        "io": _events(run, "io"),
        "dask": _dask(run),
        "regions": _regions(run),
    })  # fmt: skip


def unfinished_table(run: ObservedRun, operations: RunOperations, now_s: float | None = None) -> dict[str, Columns]:
    """Return the table of operations that had not completed; its arguments are those of `unfinished_operations`."""
    return _typed({"unfinished": _records("unfinished", unfinished_operations(run, operations, now_s))})


def derived_tables(run: ObservedRun, operations: RunOperations) -> dict[str, Columns]:
    """Return all other tables but that of `unfinished_table`: they change as a whole while a run goes on."""
    waits, totals = wait_states(run, operations), totals_of(run)
    return _typed({
        "processes": _processes(run),
        "communicators": _communicators(operations),
        "waits": _waits(run, operations, waits),
        "totals": _totals(run, totals),
        "samples": _samples(run),
        "host_samples": _host_samples(run),
        "connections": _connections(run),
        "links": _links(run),
        "findings": _findings(run, operations, waits),
        "matrix": _matrix(totals),
        "breakdown": _records("breakdown", breakdown(totals)),
        "choices": _records("choices", choices_of(totals, observations_of(run, operations))),
        "conserved": _records("conserved", conservation(run)),
        "efficiencies": _records("efficiencies", efficiencies(operations, waits)),
        "hosts": _hosts(run),
        "problems": _problems(run),
    })  # fmt: skip


def _typed(found: dict[str, Columns]) -> dict[str, Columns]:
    return {
        table: {
            name: columns[name].astype(NUMPY_TYPES[kind], copy=False) for name, kind in TABLE_COLUMNS[table].items()
        }
        for table, columns in found.items()
    }


def _processes(run: ObservedRun) -> Columns:
    owners = [process.snapshot.owner for process in run.processes]
    return {
        "process": _integers(range(len(owners))),
        "rank": _integers(-1 if owner.rank is None else owner.rank for owner in owners),
        "pid": _integers(owner.pid for owner in owners),
        "host": _texts(process.host for process in run.processes),
        "program": _texts(owner.program for owner in owners),
        "state": _texts(map(state_of, run.processes)),
        "began_s": _numbers(float(each.clock.seconds(each.snapshot.anchor[0])) for each in run.processes),
        "num_lost": _integers(min(sum(each.lost.values()), _MOST_INTEGER) for each in run.processes),
        "cost_s": _numbers(map(_cost_s, run.processes)),
    }


def _cost_s(process: SavedProcess) -> float:
    """Seconds that recording took, from one of many events; NaN: there were too few."""
    ticks = sum(ring.cost_ticks for ring in process.snapshot.rings.values())
    begin = process.snapshot.anchor[0]
    return float(process.clock.seconds(begin + ticks) - process.clock.seconds(begin)) if ticks else math.nan


def _communicators(operations: RunOperations) -> Columns:
    found = operations.communicators
    of_program = numbers_of_program(found)
    return {
        "comm": _integers(range(len(found))),
        "communicator": _texts(each.label for each in found),
        "job": _integers(each.job for each in found),
        "size": _integers(each.size for each in found),
        "members": _texts(",".join(map(str, each.members)) for each in found),
        "is_of_program": _booleans(number in of_program for number in range(len(found))),
    }


def _operations(run: ObservedRun, found: RunOperations) -> Columns:
    rows = found.rows
    return {
        **_place(run, rows["process"]),
        "comm": rows["comm"],
        "communicator": _chosen([each.label for each in found.communicators], rows["comm"]),
        "number": rows["number"],
        "op": _chosen(kind_names(), rows["kind"]),
        "peer": rows["peer"],
        "nbytes": rows["nbytes"],
        "began_s": rows["begin"],
        "ended_s": rows["end"],
        "seconds": rows["end"] - rows["begin"],
        "blocked_s": rows["blocked"],
        "state": _chosen(EVENT_STATES, rows["state"]),
        "is_async": rows["is_async"],
        "library": _chosen(found.names, rows["library"]),
        "algorithm": _chosen(found.names, rows["algorithm"]),
        "weight": rows["weight"],
    }


def _waits(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> Columns:
    rows = operations.rows[waits.rows["row"]]
    return {
        **_place(run, waits.rows["process"]),
        "comm": rows["comm"],
        "number": rows["number"],
        "op": _chosen(kind_names(), rows["kind"]),
        "began_s": rows["begin"],
        "wait_s": waits.rows["wait"],
        "lateness_s": waits.rows["lateness"],
        "late_rank": _ranks(run)[waits.rows["late_process"]],
    }


def _totals(run: ObservedRun, found: RunTotals) -> Columns:
    import numpy as np

    rows = found.rows
    transfers = [*_native.TRANSFER_NAMES, *[""] * 256]
    is_operation = rows["layer"] == COMMUNICATION
    return {
        **_place(run, rows["process"]),
        "comm": rows["comm"],
        "communicator": _chosen([each.label for each in found.communicators], rows["comm"]),
        "layer": _chosen(("communication", "transfer"), rows["layer"]),
        "op": np.where(is_operation, _chosen(kind_names(), rows["kind"]), _chosen(transfers, rows["kind"])),
        "peer": rows["peer"],
        "least_nbytes": np.int64(1) << rows["size_class"].astype(np.int64) >> 1,
        "library": _chosen(found.names, rows["library"]),
        "algorithm": _chosen(found.names, rows["algorithm"]),
        **{name: rows[name] for name in ("count", "failed", "nbytes", "seconds", "least_s", "most_s")},
    }


def _events(run: ObservedRun, ring: str) -> Columns:
    """Transfers of schedules, calls of I/O, or messages of Dask."""
    import numpy as np

    nothing = np.zeros(0, saved_layout())
    parts = [
        _columns_of(place, process, ring, process.events.get(ring, nothing))
        for place, process in enumerate(run.processes)
    ]
    if not parts:
        return {"process": _integers(())}
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {**_place(run, joined.pop("process")), **joined}


def _columns_of(place: int, process: SavedProcess, ring: str, events: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    import numpy as np

    begin, end = process.clock.seconds(events["t_begin"]), process.clock.seconds(events["t_end"])
    ended = np.where(events["t_end"] > 0, end, np.nan)
    kinds, kind = np.unique(events["kind"], return_inverse=True)
    _, first, target = np.unique(events["comm"], return_index=True, return_inverse=True)
    columns = {
        "process": np.full(len(events), place),
        "kind": _chosen([operation_name(ring, int(each)) for each in kinds], kind),
        {"io": "file", "dask": "peer"}.get(ring, "communicator"): _chosen(
            [target_of(process.snapshot, ring, event) for event in events[first]], target
        ),
        "nbytes": events["nbytes"].astype(np.int64),
        "began_s": begin,
        "ended_s": ended,
        "seconds": ended - begin,
        "state": _chosen(EVENT_STATES, events["state"]),
        "weight": np.int64(1) << events["weight_log2"].astype(np.int64),
    }
    if ring == "transfers":
        columns |= {"number": events["seq"].astype(np.int64), "peer": events["peer"]}
    if ring == "dask":
        columns |= {
            "path": _chosen(_native.DASK_PATH_NAMES, events["backend"]),
            "queue_nbytes": np.minimum(events["aux"], _MOST_INTEGER).astype(np.int64),
            "peer_process": events["peer"].astype(np.int64),
        }
    return columns


def _dask(run: ObservedRun) -> Columns:
    """Messages of Dask; the other process by its place in the run instead of its number on the host."""
    columns = _events(run, "dask")
    places = {(each.host, each.snapshot.owner.pid): place for place, each in enumerate(run.processes)}
    ends = zip(columns["host"].tolist(), columns["peer_process"].tolist(), strict=True) if "host" in columns else ()
    return {**columns, "peer_process": _integers(places.get(end, -1) for end in ends)}


def _regions(run: ObservedRun) -> Columns:
    import numpy as np

    parts = [
        (place, name, begin, end)
        for place, process in enumerate(run.processes)
        for name, begins, ends in regions_of(process)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    began, ended = _numbers(part[2] for part in parts), _numbers(part[3] for part in parts)
    return {
        **_place(run, np.array([part[0] for part in parts], np.int64)),
        "region": _texts(part[1] for part in parts),
        "began_s": began,
        "ended_s": ended,
        "seconds": ended - began,
    }


def _samples(run: ObservedRun) -> Columns:
    import numpy as np

    series = [process.series for process in run.processes]
    times = [process.clock.seconds_at_ns(process.series["time_ns"]) for process in run.processes]
    places = np.repeat(np.arange(len(series)), [len(rows) for rows in series])
    return {
        **_place(run, places),
        "at_s": np.concatenate([np.zeros(0), *times]),
        "state": _chosen(SERIES_STATES, np.concatenate([np.zeros(0, np.uint8), *(rows["state"] for rows in series)])),
        **{name: np.concatenate([np.zeros(0), *(rows[name] for rows in series)]) for name in PROCESS_NUMBERS},
    }


def _host_samples(run: ObservedRun) -> Columns:
    """One row for each number, since sources have different ones."""
    import numpy as np

    parts = [
        (series, name, series.clock.seconds_at_ns(series.rows["time_ns"]), series.rows[name])
        for series in run.host_series
        for name in series.rows.dtype.names or ()
        if name != "time_ns"
    ]
    lengths = [len(values) for *_, values in parts]
    return {
        "host": np.repeat(_texts(series.host for series, *_ in parts), lengths),
        "source": np.repeat(_texts(series.source for series, *_ in parts), lengths),
        "device": np.repeat(_texts(series.name for series, *_ in parts), lengths),
        "number": np.repeat(_texts(name for _, name, *_ in parts), lengths),
        "at_s": np.concatenate([np.zeros(0), *(times for _, _, times, _ in parts)]),
        "value": np.concatenate([np.zeros(0), *(values for *_, values in parts)]).astype(np.float64),
    }


def _connections(run: ObservedRun) -> Columns:
    found, ranks = connections_of(run), [*_ranks(run).tolist(), -1]
    ends = ("host", "local", "remote", "device")
    places = {name: [getattr(each, name) for each in found] for name in ("process", "peer")}
    numbers = [each.name for each in fields(RunConnection) if each.name not in (*ends, *places)]
    return {
        **{name: _integers(-1 if place is None else place for place in found) for name, found in places.items()},
        "rank": _integers(ranks[-1 if place is None else place] for place in places["process"]),
        "peer_rank": _integers(ranks[-1 if place is None else place] for place in places["peer"]),
        **{name: _texts(getattr(each, name) for each in found) for name in ends},
        **{name: _numbers(getattr(each, name) for each in found) for name in numbers},
        "limited_by": _texts(each.limited_by or "" for each in found),
    }


def _links(run: ObservedRun) -> Columns:
    found = link_loads(run)
    texts, lists = ("host", "device", "queue", "other_end", "neighbor"), ("peers", "other_process")
    numbers = [each.name for each in fields(LinkLoad) if each.name not in (*texts, *lists)]
    return {
        **{name: _texts(getattr(each, name) for each in found) for name in texts},
        "peers": _texts(", ".join(each.peers) for each in found),
        "other_process": _integers(-1 if each.other_process is None else each.other_process for each in found),
        **{name: _numbers(getattr(each, name) for each in found) for name in (*numbers, "residual_nbytes")},
    }


def _findings(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> Columns:
    found, ranks = findings_in(run, operations, waits), _ranks(run)
    return {
        "kind": _texts(each.kind for each in found),
        "seconds": _numbers(each.seconds for each in found),
        "layer": _texts(each.layer for each in found),
        "process": _integers(-1 if each.process is None else each.process for each in found),
        "rank": _integers(-1 if each.process is None else int(ranks[each.process]) for each in found),
        "text": _texts(each.text for each in found),
    }


def _matrix(totals: RunTotals) -> Columns:
    """The cells of the matrices of all jobs in which something was sent."""
    import numpy as np

    parts = []
    for job in sorted({each.job for each in totals.communicators}):
        found = communication_matrix(totals, job)
        ranks, peers = np.nonzero((found.sent_nbytes > 0) | (found.modelled_nbytes > 0) | (found.num_messages > 0))
        cells = (each[ranks, peers] for each in (found.sent_nbytes, found.num_messages, found.modelled_nbytes))
        parts.append((np.full(len(ranks), job), ranks, peers, *cells))
    columns = zip(*parts, strict=True) if parts else [()] * 6
    return {
        name: np.concatenate([np.zeros(0, NUMPY_TYPES[kind]), *column])
        for (name, kind), column in zip(TABLE_COLUMNS["matrix"].items(), columns, strict=True)
    }


def _hosts(run: ObservedRun) -> Columns:
    found: dict[str, list[SavedProcess]] = {}
    for process in run.processes:
        found.setdefault(process.host, []).append(process)
    return {
        "host": _texts(found),
        "num_processes": _integers(map(len, found.values())),
        "clock_error_s": _numbers(max(each.clock.error_s for each in own) for own in found.values()),
        "num_lost": _integers(
            min(sum(sum(each.lost.values()) for each in own), _MOST_INTEGER) for own in found.values()
        ),
    }


def _problems(run: ObservedRun) -> Columns:
    """What was not seen, and what could not be read: of processes, then of the run as a whole."""
    import numpy as np

    texts: list[tuple[int, str]] = []
    for place, process in enumerate(run.processes):
        lost = [f"{count} events of {ring} were overwritten" for ring, count in process.lost.items() if count]
        seen = [
            describe_io(what, account)
            for what, account in (("reads", process.io.read), ("writes", process.io.written))
            if account is not None and account.missing_nbytes
        ]
        texts += [(place, text) for text in (*lost, *seen, *process.problems)]
    places = _integers(place for place, _ in texts)
    nobody = _integers(-1 for _ in run.problems)
    of_run = {"process": nobody, "rank": nobody, "host": _texts("" for _ in run.problems)}
    columns = {name: np.concatenate([found, of_run[name]]) for name, found in _place(run, places).items()}
    return {**columns, "text": _texts([*(text for _, text in texts), *run.problems])}


def _records(table: str, rows: Sequence[object]) -> Columns:
    """Rows that have the columns of a table as attributes; None is an unknown number."""
    makers: dict[str, Callable[[Iterable[Any]], NDArray[Any]]] = {
        TEXT: _texts,
        INTEGER: _integers,
        NUMBER: _numbers,
        BOOLEAN: _booleans,
    }
    values: dict[str, list[Any]] = {name: [getattr(each, name) for each in rows] for name in TABLE_COLUMNS[table]}
    return {
        name: makers[kind](math.nan if value is None else value for value in values[name])
        for name, kind in TABLE_COLUMNS[table].items()
    }


def _place(run: ObservedRun, processes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    hosts = [process.host for process in run.processes]
    return {"process": processes, "rank": _ranks(run)[processes], "host": _chosen(hosts, processes)}


def _ranks(run: ObservedRun) -> NDArray[np.int64]:
    owners = [process.snapshot.owner for process in run.processes]
    return _integers(-1 if owner.rank is None else owner.rank for owner in owners)


def _chosen(texts: Sequence[str], places: NDArray[Any]) -> NDArray[np.object_]:
    """The text at each place; "" for -1."""
    import numpy as np

    return np.asarray(np.array([*texts, ""], object)[places])


def _texts(values: Iterable[str]) -> NDArray[np.object_]:
    import numpy as np

    return np.array([*values], object)


def _integers(values: Iterable[int]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([*values], np.int64)


def _numbers(values: Iterable[float]) -> NDArray[np.float64]:
    import numpy as np

    return np.array([*values], np.float64)


def _booleans(values: Iterable[bool]) -> NDArray[np.bool_]:
    import numpy as np

    return np.array([*values], np.bool_)
