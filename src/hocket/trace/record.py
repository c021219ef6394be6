"""The events of the native core as Python values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import sleep

from hocket import _native

EVENT_FIELDS = (
    ("t_begin", "Q"), ("t_end", "Q"), ("nbytes", "Q"), ("aux", "Q"), ("seq", "I"), ("comm", "I"), ("peer", "i"),
    ("blocked_ns", "I"), ("thread", "H"), ("algorithm", "H"), ("kind", "B"), ("backend", "B"), ("dtype", "B"),
    ("reduce", "B"), ("state", "B"), ("flags", "B"), ("layer", "B"), ("weight_log2", "B"), ("version", "I"),
)  # fmt: skip
"""Names and types (as in `struct`) of the native Event (native/recorder/layout.hpp)."""
_EVENT = struct.Struct("<" + "".join(code for _, code in EVENT_FIELDS))
EVENT_STATES = ("issued", "started", "waited", "completed", "failed")
"""Names of the native EventState, by its numbers."""
ASYNC = 1
NAMED = 2
IN_PLACE = 4
"""Flags of the native Event."""
END_UNKNOWN = 8
"""Another flag, of other libraries' operations: their completion was not reported; `t_end` is when it was
first known."""
NO_REDUCTION = 0xFF
assert _EVENT.size == 64


@dataclass(frozen=True)
class Record:
    """One operation of a communicator.

    Args:
        op: kind of the operation, e.g. "all_reduce".
        seq: its number in the communicator's issue order; point-to-point operations count per peer and direction.
        nbytes: bytes of the array; bytes of one block for operations with one block per rank; bytes of all blocks for
            operations with counts (of all_to_allv, the blocks that this rank sends).
        dtype: name of the element type.
        reduction: "sum" or another name of a reduction, or None.
        peer: root of a rooted operation, peer of a point-to-point operation, or None.
        tag: tag of a point-to-point operation, else 0.
        backend: name of the library that carried it.
        state: "issued", "started", "waited", "completed" or "failed".
        is_async: whether it was issued with ``async_op=True``.
        begin_ns: time of issue, in nanoseconds of the monotonic clock.
        seconds: time from issue to completion; None while it is in flight.
        algorithm: name of the executed schedule, with its parameters; empty for the library's own algorithm.
        sent_nbytes: bytes that this rank sent under that schedule; None without a schedule.
        blocked_s: seconds that the program was blocked: all of `seconds` for a blocking operation; else the time in the
            issuing call and in waits. None while it is in flight.
        in_place: whether it worked directly on arrays in shared memory (`Communicator.empty`).

    Examples:
        >>> with hk.init() as comm:
        ...     comm.all_reduce(np.ones(1000, np.float32))
        ...     record = comm.records()[-1]
        >>> record.op, record.nbytes, record.reduction, record.state
        ('all_reduce', 4000, 'sum', 'completed')
    """

    op: str
    seq: int
    nbytes: int
    dtype: str
    reduction: str | None
    peer: int | None
    tag: int
    backend: str
    state: str
    is_async: bool
    begin_ns: int
    seconds: float | None
    algorithm: str = ""
    sent_nbytes: int | None = None
    blocked_s: float | None = None
    in_place: bool = False


@dataclass(frozen=True)
class _Clock:
    """Converts raw ticks to nanoseconds of the monotonic clock."""

    ticks: int
    ns: int
    ns_per_tick: float

    def to_ns(self, ticks: int) -> int:
        return self.ns + round((ticks - self.ticks) * self.ns_per_tick)


_first_anchor = _native.clock_anchor()


@lru_cache(maxsize=1)
def _clock() -> _Clock:
    # Two anchors at least 10 ms apart give the rate to a few parts in 100,000.
    ticks, ns = _native.clock_anchor()
    if ns - _first_anchor[1] < 10_000_000:
        sleep(0.01)
        ticks, ns = _native.clock_anchor()
    return _Clock(ticks, ns, (ns - _first_anchor[1]) / (ticks - _first_anchor[0]))


def seconds_per_tick() -> float:
    """Return the length of one tick of the events' clock."""
    return _clock().ns_per_tick * 1e-9


def decode_events(
    events: bytes, backends: Sequence[str], algorithms: Sequence[str] = (), *, in_ns: bool = False
) -> list[Record]:
    """Decode native events, oldest first.

    `Communicator.records` calls it.

    Args:
        events: 64 bytes per event.
        backends: names of backends; an event has the index.
        algorithms: names of algorithms; an event has the index plus 1, and 0 for no algorithm.
        in_ns: whether the times are nanoseconds of a virtual clock.

    Examples:
        >>> event = bytearray(64)  # of kind 0, by backend 0, issued and not yet completed
        >>> (record,) = hk.trace.decode_events(bytes(event), ["shm"], in_ns=True)
        >>> record.backend, record.state, record.seconds
        ('shm', 'issued', None)
    """
    clock = _Clock(0, 0, 1.0) if in_ns else _clock()
    return [_decode(clock, backends, algorithms, *fields) for fields in _EVENT.iter_unpack(events)]


def _decode(
    clock: _Clock, backends: Sequence[str], algorithms: Sequence[str],
    t_begin: int, t_end: int, nbytes: int, aux: int, seq: int, comm: int, peer: int, blocked_ns: int,
    thread: int, algorithm: int, kind: int, backend: int, dtype: int, reduction: int,
    state: int, flags: int, layer: int, weight_log2: int, version: int,
) -> Record:  # fmt: skip
    seconds = (t_end - t_begin) * clock.ns_per_tick * 1e-9 if t_end else None
    is_async = bool(flags & ASYNC)
    return Record(
        op=_native.OP_NAMES[kind],
        seq=seq,
        nbytes=nbytes,
        dtype=_native.DTYPE_NAMES[dtype],
        reduction=None if reduction == NO_REDUCTION else _native.REDUCE_NAMES[reduction],
        peer=None if peer < 0 else peer,
        tag=0 if algorithm else aux,
        backend=backends[backend],
        state=EVENT_STATES[state],
        is_async=is_async,
        begin_ns=clock.to_ns(t_begin),
        seconds=seconds,
        algorithm=algorithms[algorithm - 1] if algorithm else "",
        sent_nbytes=aux if algorithm else None,
        blocked_s=blocked_ns * 1e-9 if is_async and seconds is not None else seconds,
        in_place=bool(flags & IN_PLACE),
    )
