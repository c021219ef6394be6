"""The events of the native core as values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import sleep

from hocket import _native

EVENT_FIELDS = (
    ("t_begin", "Q"), ("t_end", "Q"), ("seq", "I"), ("comm", "I"), ("nbytes", "Q"), ("peer", "i"), ("weight", "I"),
    ("aux", "Q"), ("kind", "H"), ("algorithm", "H"), ("backend", "B"), ("dtype", "B"), ("state", "B"), ("flags", "B"),
    ("blocked_ns", "I"), ("reduce", "I"),
)  # fmt: skip
"""Names and types (as in `struct`) of the native Event (native/core/event.hpp)."""
_EVENT = struct.Struct("<" + "".join(code for _, code in EVENT_FIELDS))
STATES = ("issued", "started", "waited", "completed", "failed")
"""Names of the native EventState, by its numbers."""
ASYNC = 1
NAMED = 2
IN_PLACE = 4
"""Flags of the native Event."""
_NO_REDUCTION = 0xFF
assert _EVENT.size == 64


@dataclass(frozen=True)
class Record:
    """One operation of a communicator.

    Args:
        op: kind, e.g. "all_reduce".
        seq: its number in the issue order of the communicator; point-to-point counts per peer and direction.
        nbytes: bytes of the array; of one block where there is one for every rank; of all blocks together where counts
            were given (of all_to_allv, those that this rank sends).
        dtype: name of the element type.
        reduction: "sum" or another name of a reduction, or None.
        peer: root of a rooted operation, peer of a point-to-point one, or None.
        tag: of a point-to-point operation, else 0.
        backend: name of the library that carried it.
        state: "issued", "started", "completed" or "failed".
        is_async: whether it was issued with ``async_op=True``.
        begin_ns: when it was issued, in nanoseconds of the monotonic clock.
        seconds: from issue to completion; None while it is in flight.
        algorithm: name of the schedule by which it was executed, with its parameters; empty: the library's own way.
        sent_nbytes: bytes that this rank sent to others by that schedule; None without one.
        blocked_s: seconds that the program lost to it: all of `seconds` where it was blocking; else the time in the
            call that issued it and in waits for it. None while it is in flight.
        in_place: whether it was done on arrays in shared memory (`Communicator.empty`) where they are.
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
    """Turns raw ticks into nanoseconds of the monotonic clock."""

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
    """Return the length of a tick of the clock that events are stamped by."""
    return _clock().ns_per_tick * 1e-9


def decode_events(
    events: bytes, backends: Sequence[str], algorithms: Sequence[str] = (), *, in_ns: bool = False
) -> list[Record]:
    """Decode the bytes of native events, oldest first.

    Args:
        events: 64 bytes each.
        backends: names by the numbers that stand in the events.
        algorithms: likewise, from 1.
        in_ns: their times are nanoseconds of a virtual clock.
    """
    clock = _Clock(0, 0, 1.0) if in_ns else _clock()
    return [_decode(clock, backends, algorithms, *fields) for fields in _EVENT.iter_unpack(events)]


def _decode(
    clock: _Clock, backends: Sequence[str], algorithms: Sequence[str],
    t_begin: int, t_end: int, seq: int, comm: int, nbytes: int, peer: int, weight: int, aux: int,
    kind: int, algorithm: int, backend: int, dtype: int, state: int, flags: int, blocked_ns: int, reduction: int,
) -> Record:  # fmt: skip
    seconds = (t_end - t_begin) * clock.ns_per_tick * 1e-9 if t_end else None
    is_async = bool(flags & ASYNC)
    return Record(
        op=_native.OP_NAMES[kind],
        seq=seq,
        nbytes=nbytes,
        dtype=_native.DTYPE_NAMES[dtype],
        reduction=None if reduction == _NO_REDUCTION else _native.REDUCE_NAMES[reduction],
        peer=None if peer < 0 else peer,
        tag=0 if algorithm else aux,
        backend=backends[backend],
        state=STATES[state],
        is_async=is_async,
        begin_ns=clock.to_ns(t_begin),
        seconds=seconds,
        algorithm=algorithms[algorithm - 1] if algorithm else "",
        sent_nbytes=aux if algorithm else None,
        blocked_s=blocked_ns * 1e-9 if is_async and seconds is not None else seconds,
        in_place=bool(flags & IN_PLACE),
    )
