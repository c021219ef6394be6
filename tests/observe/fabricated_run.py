"""Recorded runs with chosen events: times in nanoseconds, one tick each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hocket import _native
from hocket.observe import ObservedRun, RunClock, RunDescription, SavedProcess
from hocket.observe.completeness import completeness_of
from hocket.observe.saved import saved_layout
from hocket.observe.series import SERIES_STATES, no_process_rows
from hocket.trace import EVENT_STATES, Definition, Owner, RecorderSnapshot
from hocket.trace.io_totals import NO_IO_TOTALS
from hocket.trace.record import ASYNC
from hocket.trace.region import HISTOGRAM_FIELDS

MS = 1_000_000
FOREIGN = {name: 64 + number for number, name in enumerate(_native.FOREIGN_NAMES)}
KINDS = {name: number for number, name in enumerate(_native.OP_NAMES)} | FOREIGN


@dataclass
class Op:
    """An operation of one rank; `end` None: in flight."""

    kind: str
    number: int
    begin: int
    end: int | None
    nbytes: int = 8
    peer: int = -1
    comm: int = 1
    is_async: bool = False
    state: str = ""
    tag: int = 0
    blocked: int = 0


@dataclass
class FakeRank:
    """A process: its operations, its I/O and regions as (begin, end), and samples as (ns, state, cpu_s, cpu_wait_s)."""

    rank: int | None
    ops: Sequence[Op] = ()
    io: Sequence[tuple[int, int]] = ()
    regions: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    samples: Sequence[tuple[int, str, float, float]] = ()
    communicators: Mapping[int, tuple[str, str, int]] = field(default_factory=dict)  # label, members, rank
    variables: Mapping[str, str] = field(default_factory=dict)
    has_ended: bool = True
    start_ns: int = 0
    host: str = "host"
    ring: str = "operations"


def fabricate(ranks: Iterable[FakeRank], world_size: int | None = None) -> ObservedRun:
    """Return the run of these processes."""
    members = list(ranks)
    size = len([each for each in members if each.rank is not None]) if world_size is None else world_size
    processes = tuple(_process(each, size) for each in members)
    description = RunDescription(("program",), "host", 0.0, 1.0, 0, {}, {}, ((0, 0), (1, 1)))
    return ObservedRun(Path("run"), description, processes)


def _process(rank: FakeRank, size: int) -> SavedProcess:
    clock = RunClock([(0, 0), (10**12, 10**12)], [], 0)
    communicators = rank.communicators or {1: ("world", "", rank.rank or 0)}
    definitions = [
        definition
        for ident, (label, text, own) in communicators.items()
        for definition in (
            Definition("communicator", label, ident, 0, own),
            Definition("backend", "shm", ident, 0, 0),
            *([Definition("members", text, ident, 0, 0)] if text else []),
        )
    ]
    region_ids = {name: 100 + number for number, name in enumerate(rank.regions)}
    definitions += [Definition("region", name, ident, 0, 0) for name, ident in region_ids.items()]
    definitions += [
        Definition("variable", f"{name}={value}", number, 0, 0)
        for number, (name, value) in enumerate(rank.variables.items(), 1)
    ]
    events = {
        rank.ring: _events([_op(op) for op in rank.ops]),
        "io": _events([{"t_begin": begin, "t_end": end, "nbytes": 1} for begin, end in rank.io]),
        "program": _events(
            [
                {
                    "t_begin": begin,
                    "t_end": end,
                    "comm": region_ids[name],
                    "kind": _native.PROGRAM_NAMES.index("region"),
                }
                for name, times in rank.regions.items()
                for begin, end in times
            ]
        ),
    }
    owner = Owner(
        1000 + (rank.rank or 0), rank.start_ns, 1, "boot", rank.host, "program", rank.rank, size, rank.has_ended, 0
    )
    snapshot = RecorderSnapshot(
        source="fabricated", owner=owner, ticks_are_tsc=True, anchor=(rank.start_ns, rank.start_ns, 0), rings={},
        histograms=np.zeros(0, list(HISTOGRAM_FIELDS)), num_own_histograms=0, num_overflowed=0,
        definitions=tuple(definitions), io=NO_IO_TOTALS, end_status=None, problems=(),
    )  # fmt: skip
    series = np.zeros(len(rank.samples), no_process_rows().dtype)
    for row, (time_ns, state, cpu_s, cpu_wait_s) in zip(series, rank.samples, strict=True):
        row["time_ns"], row["state"], row["cpu_s"], row["cpu_wait_s"] = (
            time_ns,
            SERIES_STATES.index(state),
            cpu_s,
            cpu_wait_s,
        )
    return SavedProcess(
        f"rank-{rank.rank}", snapshot, events, {}, completeness_of(snapshot), series, (), rank.host, clock
    )


def with_histograms(process: SavedProcess, entries: Sequence[Mapping[str, object]], num_own: int) -> SavedProcess:
    """Return a process with these totals; missing fields are 0."""
    histograms = np.zeros(len(entries), list(HISTOGRAM_FIELDS))
    for row, entry in zip(histograms, entries, strict=True):
        for name, value in entry.items():
            row[name] = value
    return replace(process, snapshot=replace(process.snapshot, histograms=histograms, num_own_histograms=num_own))


def _op(op: Op) -> dict[str, int]:
    state = op.state or ("started" if op.end is None else "completed")
    return {
        "t_begin": op.begin, "t_end": op.end or 0, "kind": KINDS[op.kind], "seq": op.number, "nbytes": op.nbytes,
        "peer": op.peer, "comm": op.comm, "flags": ASYNC if op.is_async else 0, "aux": op.tag,
        "blocked_ns": op.blocked, "state": EVENT_STATES.index(state),
    }  # fmt: skip


def _events(rows: Sequence[Mapping[str, int]]) -> np.ndarray:
    events = np.zeros(len(rows), saved_layout())
    events["place"] = np.arange(len(rows))
    events["state"] = EVENT_STATES.index("completed")
    for event, row in zip(events, rows, strict=True):
        for name, value in row.items():
            event[name] = value
    return events
