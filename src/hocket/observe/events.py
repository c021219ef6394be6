"""The latest events of a recorder, with names."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.activity import RINGS_OF_MESSAGES, RINGS_OF_NAMES, Clock, operation_name, target_of
from hocket.trace import EVENT_STATES, RecorderSnapshot
from hocket.trace.record import END_UNKNOWN

if TYPE_CHECKING:
    import numpy as np

_NO_STEP = 2**64 - 1
_UNKNOWN_OFFSET = 2**64 - 1
_MOST_LOG2 = 64


@dataclass(frozen=True)
class RecordedEvent:
    """One event of any kind.

    Args:
        ring: "operations" of hocket, "foreign" ones of torch or MPI, "transfers" of schedules, "program", "io",
            "process", or "dask": messages over its connections.
        name: of the operation, the transfer, the kind of I/O, the region, the counter or the control message; of a
            message of Dask "send" or "receive".
        target: its communicator, file, or peer's address; "" in the program and the process.
        number: of an operation in its communicator, also of its transfers; of a region or mark its step; of a counter
            with several elements, which one; otherwise 0.
        peer: rank that it exchanges data with, or root; None: neither.
        nbytes: bytes that it moved.
        offset: in the file; None: unknown, or no I/O.
        value: of a counter; of a change of sampling, of how many events one is recorded from then on; None: neither.
        ago_s: seconds from its begin until now.
        seconds: from begin to end; None: it has not completed, or the library did not report when.
        state: one of `hocket.trace.EVENT_STATES`.
        weight: for how many events it stands.
        thread: id of its thread in the kernel; None: unknown.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with observe.region("forward", step=7):
        ...     event = observe.events_in(hk.trace.find_recorders(os.getpid())[0].read(), 1)[-1]
        >>> event.name, event.number, event.seconds
        ('forward', 7, None)
    """

    ring: str
    name: str
    target: str
    number: int
    peer: int | None
    nbytes: int
    offset: int | None
    value: float | None
    ago_s: float
    seconds: float | None
    state: str
    weight: int
    thread: int | None


def events_in(snapshot: RecorderSnapshot, most: int) -> list[RecordedEvent]:
    """Return the latest events of a recorder on this host, of all rings, by their begin.

    Args:
        snapshot: what the recorder held a moment ago.
        most: at most so many.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init() as comm:
        ...     comm.barrier()
        ...     events = observe.events_in(hk.trace.find_recorders(os.getpid())[0].read(), 5)
        >>> events[-1].name
        'barrier'
    """
    clock = Clock.of(snapshot)
    threads = {each.id: each.extra for each in snapshot.definitions if each.kind == "thread"}
    latest = [(ring.name, event) for ring in snapshot.rings.values() for event in ring.events[-most:]]
    latest.sort(key=lambda each: int(each[1]["t_begin"]))
    return [_event(snapshot, clock, threads, ring, event) for ring, event in latest[-most:]]


def _event(
    snapshot: RecorderSnapshot, clock: Clock, threads: dict[int, int], ring: str, event: np.void
) -> RecordedEvent:
    name, target = operation_name(ring, int(event["kind"])), target_of(snapshot, ring, event)
    aux, peer = int(event["aux"]), int(event["peer"])
    kind, number = name, int(event["seq"])
    if ring in RINGS_OF_NAMES:
        if kind != "counter":
            number = 0 if kind == "sampling" or aux == _NO_STEP else aux
        name, target = target, ""
    begin, end = int(event["t_begin"]), int(event["t_end"])
    return RecordedEvent(
        ring=ring,
        name=name,
        target=target,
        number=number,
        peer=peer if ring in RINGS_OF_MESSAGES and peer >= 0 else None,
        nbytes=int(event["nbytes"]),
        offset=aux if ring == "io" and aux != _UNKNOWN_OFFSET else None,
        value=_value(kind, aux),
        ago_s=clock.seconds_since(begin),
        seconds=None if not end or int(event["flags"]) & END_UNKNOWN else (end - begin) * clock.s_per_tick,
        state=EVENT_STATES[int(event["state"])],
        weight=1 << int(event["weight_log2"]),
        thread=threads.get(int(event["thread"])),
    )


def _value(kind: str, aux: int) -> float | None:
    if kind == "sampling":
        return 2.0 ** min(aux, _MOST_LOG2)
    return struct.unpack("<d", struct.pack("<Q", aux))[0] if kind == "counter" else None
