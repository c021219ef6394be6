"""What a process is doing now: the operations that it has begun and not completed, and the totals so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket import _native
from hocket.observe.completeness import counted_io
from hocket.trace import EVENT_STATES, FIRST_FOREIGN_KIND, RINGS, RecorderSnapshot, Ring

if TYPE_CHECKING:
    import numpy as np

_IN_FLIGHT = [EVENT_STATES.index(state) for state in ("issued", "started", "waited")]
_MESSAGES = [_native.OP_NAMES.index(name) for name in ("send", "recv")]
_LAYERS = ("communication", "transfer", "program", "io", "process")
RINGS_OF_NAMES = ("program", "process")
"""Their events are what their name says, and have no communicator or file."""
RINGS_OF_MESSAGES = ("operations", "foreign", "transfers")
"""Their events have a peer."""


@dataclass(frozen=True)
class InFlight:
    """Something that a process has begun and not completed.

    Args:
        ring: "operations" of hocket, "foreign" ones of torch or MPI, "transfers" of a schedule, "io", "program", or
            "process": a message of the job's control.
        name: of the operation, transfer, kind of I/O, region or message.
        target: its communicator or file.
        number: of the operation in its communicator.
        peer: rank that it exchanges data with, or root; None: neither.
        nbytes: bytes that it moves.
        since_s: seconds since it began.
        members: ranks in the job of its communicator's members, such as "0-3,7"; "": unknown.

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
    members: str = ""


@dataclass(frozen=True)
class LatestCollective:
    """How far a process has come on one communicator.

    Args:
        target: the communicator.
        members: ranks in the job of its members, such as "0-3,7"; "": unknown.
        number: of its latest collective, in flight or completed; -1: it has begun none.

    Examples:
        >>> from hocket import observe
        >>> observe.LatestCollective("world", "", 7).number
        7
    """

    target: str
    members: str
    number: int


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
        collectives: the latest collective of each communicator; communicators may have the same name.
        latest: number of the latest collective by the name of its communicator.
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
    collectives: tuple[LatestCollective, ...]
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
    io = counted_io(snapshot)
    collectives = _collectives(snapshot)
    ends = [int(ring.events["t_end"].max()) for ring in snapshot.rings.values() if len(ring.events)]
    return Activity(
        in_flight=tuple(in_flight),
        num_operations=int(communication["count"].sum()),
        communicated_nbytes=int(communication["nbytes"].sum()),
        communication_s=float(communication["ticks"].sum()) * clock.s_per_tick,
        num_io=int(io["count"].sum()),
        io_nbytes=int(io["nbytes"].sum()),
        io_s=float(io["ticks"].sum()) * clock.s_per_tick,
        collectives=tuple(collectives),
        latest=_latest(collectives),
        idle_s=None if in_flight or not any(ends) else clock.seconds_since(max(ends)),
    )


def operation_name(ring: str, kind: int) -> str:
    """Return the name of a kind of event, such as "all_reduce" or "read".

    Args:
        ring: name of the ring that the event is from.
        kind: its "kind".

    Examples:
        >>> from hocket import observe
        >>> observe.operation_name("io", 2)
        'read'
    """
    of_rings = {
        "io": _native.IO_NAMES,
        "program": _native.PROGRAM_NAMES,
        "process": _native.PROCESS_NAMES,
        "transfers": _native.TRANSFER_NAMES,
        "dask": _native.DASK_NAMES,
    }
    if ring in of_rings:
        return of_rings[ring][kind]
    if kind >= FIRST_FOREIGN_KIND:
        return _native.FOREIGN_NAMES[kind - FIRST_FOREIGN_KIND]
    return _native.OP_NAMES[kind]


def _in_flight(snapshot: RecorderSnapshot, clock: Clock) -> Iterator[InFlight]:
    for ring in snapshot.rings.values():
        for event in _open_events(ring):
            name, target = operation_name(ring.name, int(event["kind"])), target_of(snapshot, ring.name, event)
            if ring.name in RINGS_OF_NAMES:
                name, target = target, ""
            peer = int(event["peer"])
            is_message = ring.name in RINGS_OF_MESSAGES
            yield InFlight(
                ring=ring.name,
                name=name,
                target=target,
                number=int(event["seq"]),
                peer=peer if is_message and peer >= 0 else None,
                nbytes=int(event["nbytes"]),
                since_s=clock.seconds_since(int(event["t_begin"])),
                members=snapshot.names.get(("members", int(event["comm"]), 0), "") if is_message else "",
            )


def _open_events(ring: Ring) -> np.ndarray:
    import numpy as np

    return ring.events[np.isin(ring.events["state"], _IN_FLIGHT)]


def target_of(snapshot: RecorderSnapshot, ring: str, event: np.void) -> str:
    """Return the name of an event's communicator, file, region, counter, message or connection."""
    kinds = {"io": "file", "program": "region", "process": "region", "dask": "connection"}
    kind = kinds.get(ring, "communicator")
    ident = int(event["comm"])
    if ring in RINGS_OF_NAMES:
        name = operation_name(ring, int(event["kind"]))
        if name == "sampling":
            return f"sampling of {RINGS[ident] if ident < len(RINGS) else f'ring {ident}'}"
        if name == "counter":
            kind = "counter"
    return snapshot.names.get((kind, ident, 0), f"{kind} {ident}")


def _collectives(snapshot: RecorderSnapshot) -> list[LatestCollective]:
    import numpy as np

    numbers = dict.fromkeys(snapshot.communicators, -1)
    for name in ("operations", "foreign"):
        ring = snapshot.rings[name]
        # A receive of MPI from any rank has no peer either.
        is_collective = (ring.events["peer"] < 0) & ~np.isin(ring.events["kind"], _MESSAGES)
        for event in ring.events[is_collective]:
            ident = int(event["comm"])
            numbers[ident] = max(numbers.get(ident, -1), int(event["seq"]))
    names = snapshot.names
    return [
        LatestCollective(
            names.get(("communicator", ident, 0), f"communicator {ident}"), names.get(("members", ident, 0), ""), number
        )
        for ident, number in numbers.items()
    ]


def _latest(collectives: list[LatestCollective]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in collectives:
        found[each.target] = max(found.get(each.target, 0), each.number)
    return found
