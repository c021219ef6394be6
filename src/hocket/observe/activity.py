"""What a process is doing now: the operations that it has begun and not completed, and the totals so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket import _native
from hocket.trace import EVENT_STATES, FIRST_FOREIGN_KIND, RecorderSnapshot, Ring

if TYPE_CHECKING:
    import numpy as np

_IN_FLIGHT = [EVENT_STATES.index(state) for state in ("issued", "started", "waited")]
_MESSAGES = [_native.OP_NAMES.index(name) for name in ("send", "recv")]
_LAYERS = ("communication", "transfer", "program", "io", "process")


@dataclass(frozen=True)
class InFlight:
    """Something that a process has begun and not completed.

    Args:
        ring: "operations" of hocket, "foreign" ones of torch or MPI, "io" or "program".
        name: of the operation, the kind of I/O or the region.
        target: its communicator or file.
        number: of the operation in its communicator.
        peer: rank that it exchanges data with, or root; None: neither.
        nbytes: bytes that it moves.
        since_s: seconds since it began.

    Examples:
        >>> from hocket import observe
        >>> observe.InFlight("operations", "all_reduce", "world", 3, None, 1024, 0.5).name
        'all_reduce'
    """

    ring: str
    name: str
    target: str
    number: int
    peer: int | None
    nbytes: int
    since_s: float


@dataclass(frozen=True)
class Activity:
    """What a process is doing, and has done since its start.

    Args:
        in_flight: oldest first.
        num_operations: completed operations of communication.
        communicated_nbytes: their bytes.
        communication_s: their seconds, from begin to end.
        num_io: completed calls of I/O.
        io_nbytes: their bytes.
        io_s: their seconds.
        latest: number of the latest collective of each communicator, in flight or completed.
        idle_s: seconds since the last operation or call ended; None: none has, or something is in flight.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init() as comm:
        ...     before = observe.activity_of(hk.trace.find_recorders(os.getpid())[0].read())
        ...     comm.all_reduce(np.ones(4))
        ...     after = observe.activity_of(hk.trace.find_recorders(os.getpid())[0].read())
        >>> after.num_operations - before.num_operations, after.communicated_nbytes - before.communicated_nbytes
        (1, 32)
    """

    in_flight: tuple[InFlight, ...]
    num_operations: int
    communicated_nbytes: int
    communication_s: float
    num_io: int
    io_nbytes: int
    io_s: float
    latest: dict[str, int]
    idle_s: float | None


@dataclass(frozen=True)
class Clock:
    """Converts ticks of a recorder of this host to seconds ago."""

    ticks: int
    s_per_tick: float

    @classmethod
    def of(cls, snapshot: RecorderSnapshot) -> Clock:
        """Return the clock of a recorder that was read just now."""
        ticks, ns = _native.clock_anchor()
        begin_ticks, begin_ns, _ = snapshot.anchor
        passed = ticks - begin_ticks
        return cls(ticks, (ns - begin_ns) / passed * 1e-9 if passed > 0 else 0.0)

    def seconds_since(self, ticks: int) -> float:
        """Return how many seconds ago these ticks were."""
        return max(self.ticks - ticks, 0) * self.s_per_tick


def activity_of(snapshot: RecorderSnapshot) -> Activity:
    """Return what the process of a recorder on this host is doing.

    Args:
        snapshot: what the recorder held a moment ago.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     activity = observe.activity_of(hk.trace.find_recorders(os.getpid())[0].read())
        >>> activity.in_flight
        ()
    """
    clock = Clock.of(snapshot)
    in_flight = sorted(_in_flight(snapshot, clock), key=lambda each: -each.since_s)
    histograms = snapshot.histograms
    communication = histograms[histograms["layer"] == _LAYERS.index("communication")]
    io = histograms[histograms["layer"] == _LAYERS.index("io")]
    ends = [int(ring.events["t_end"].max()) for ring in snapshot.rings.values() if len(ring.events)]
    return Activity(
        in_flight=tuple(in_flight),
        num_operations=int(communication["count"].sum()),
        communicated_nbytes=int(communication["nbytes"].sum()),
        communication_s=float(communication["ticks"].sum()) * clock.s_per_tick,
        num_io=int(io["count"].sum()),
        io_nbytes=int(io["nbytes"].sum()),
        io_s=float(io["ticks"].sum()) * clock.s_per_tick,
        latest=_latest(snapshot),
        idle_s=None if in_flight or not any(ends) else clock.seconds_since(max(ends)),
    )


def operation_name(ring: str, kind: int) -> str:
    """Return the name of an event's kind in one of the rings."""
    if ring == "io":
        return _native.IO_NAMES[kind]
    if ring == "program":
        return _native.PROGRAM_NAMES[kind]
    if ring == "process":
        return _native.PROCESS_NAMES[kind]
    if kind >= FIRST_FOREIGN_KIND:
        return _native.FOREIGN_NAMES[kind - FIRST_FOREIGN_KIND]
    return _native.OP_NAMES[kind]


def _in_flight(snapshot: RecorderSnapshot, clock: Clock) -> Iterator[InFlight]:
    for ring in snapshot.rings.values():
        for event in _open_events(ring):
            name, target = operation_name(ring.name, int(event["kind"])), target_of(snapshot, ring.name, event)
            if ring.name == "program":
                name, target = target, ""
            peer = int(event["peer"])
            is_message = ring.name in ("operations", "foreign")
            yield InFlight(
                ring=ring.name,
                name=name,
                target=target,
                number=int(event["seq"]),
                peer=peer if is_message and peer >= 0 else None,
                nbytes=int(event["nbytes"]),
                since_s=clock.seconds_since(int(event["t_begin"])),
            )


def _open_events(ring: Ring) -> np.ndarray:
    import numpy as np

    return ring.events[np.isin(ring.events["state"], _IN_FLIGHT)]


def target_of(snapshot: RecorderSnapshot, ring: str, event: np.void) -> str:
    """Return the name of an event's communicator, file, region or counter."""
    kind = {"io": "file", "program": "region", "process": "counter"}.get(ring, "communicator")
    if ring == "program" and _native.PROGRAM_NAMES[int(event["kind"])] == "counter":
        kind = "counter"
    ident = int(event["comm"])
    return snapshot.names.get((kind, ident, 0), f"{kind} {ident}")


def _latest(snapshot: RecorderSnapshot) -> dict[str, int]:
    import numpy as np

    found = {each.text: 0 for each in snapshot.communicators.values()}
    for name in ("operations", "foreign"):
        ring = snapshot.rings[name]
        is_message = np.isin(ring.events["kind"], _MESSAGES)  # one from any rank has no peer yet
        for event in ring.events[(ring.events["peer"] < 0) & ~is_message]:
            label = target_of(snapshot, name, event)
            found[label] = max(found.get(label, 0), int(event["seq"]))
    return found
