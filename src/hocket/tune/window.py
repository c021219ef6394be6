"""Windows: the times of consecutive collectives of a running program, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket import _native
from hocket.comm.policy import dtype_class, join_carrier
from hocket.trace.record import ASYNC, EVENT_FIELDS, EVENT_STATES, IN_PLACE, NAMED, seconds_per_tick

_EVENT = np.dtype([(name, "<" + code) for name, code in EVENT_FIELDS])
_MISSING = -np.inf
_MESSAGES = ("send", "recv")
# In these operations every rank waits for the last one, so the shortest time contains no waiting. In the others, some
# ranks return at once, so the longest time is the duration of the operation.
_SYNCHRONIZING = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEARNABLE = (*_SYNCHRONIZING[1:], "reduce", "scan", "broadcast", "gather", "scatter")
"""Operations whose size is the same on all ranks, so that a choice by size is the same, too."""


@dataclass(frozen=True, order=True)
class Cell:
    """A set of operations that share one choice.

    Args:
        op: name of the operation.
        dtypes: class of types.
        num_bits: bits of their sizes in bytes: sizes are from 2**(num_bits - 1) to 2**num_bits - 1.
    """

    op: str
    dtypes: str
    num_bits: int

    @property
    def least_nbytes(self) -> int:
        return 1 << self.num_bits >> 1

    @property
    def most_nbytes(self) -> int:
        return (1 << self.num_bits) - 1


@dataclass(frozen=True)
class TimedKind:
    """Operations of the same kind, size and carrier."""

    op: str
    dtype: str
    reduction: str | None
    nbytes: int
    carrier: str

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """The sort key of kinds."""
        return self.op, self.dtype, self.reduction or "", self.nbytes, self.carrier

    @property
    def cell(self) -> Cell:
        return Cell(self.op, dtype_class(self.op, self.dtype), self.nbytes.bit_length())


class Window:
    """The collectives of one rank in a range of the issue order, and their times.

    Args:
        events: latest events of a communicator, as bytes.
        first: number of the collective before the window.
        length: number of collectives.
        backends: names of backends, by their numbers in the events.
        algorithms: names of algorithms, by their numbers in the events, from 1.

    Attributes:
        times: float64 of shape (2, length). The ranks agree on the smallest value of each item. times[0]: seconds,
            negated for operations whose largest time counts. times[1]: 1 if the operation was blocking, else 0. -inf if
            this rank has no time, so that the smallest value of all ranks is -inf, too.
    """

    def __init__(
        self, events: bytes, first: int, length: int, backends: Sequence[str], algorithms: Sequence[str]
    ) -> None:
        self.times: NDArray[np.float64] = np.full((2, length), _MISSING)
        self._places: dict[TimedKind, list[int]] = {}
        records = np.frombuffer(events, _EVENT)
        # Events hold the lowest 32 bits of numbers; messages have their own numbers.
        place = (records["seq"] - np.uint32((first + 1) & 0xFFFFFFFF)).astype(np.int64)
        is_here = (place < length) & ~np.isin(records["kind"], [_native.OP_NAMES.index(name) for name in _MESSAGES])
        # Leave out operations whose backend was named, since no choice was made. Also leave out operations in place on
        # shared arrays: no other carrier supports them, and their times do not apply to other arrays.
        is_here &= (records["flags"] & (NAMED | IN_PLACE)) == 0
        records, place = records[is_here], place[is_here]
        is_async = (records["flags"] & ASYNC) != 0
        seconds = np.where(
            is_async, records["blocked_ns"] * 1e-9, (records["t_end"] - records["t_begin"]) * seconds_per_tick()
        )
        seconds[records["state"] != EVENT_STATES.index("completed")] = np.inf
        known = np.zeros(length, bool)
        facts = ("kind", "dtype", "reduce", "nbytes", "backend", "algorithm")
        columns = (records[each].tolist() for each in facts)
        numbers_by_kind: dict[tuple[int, ...], list[int]] = {}
        for number, row in zip(place.tolist(), zip(*columns, strict=True), strict=True):
            numbers_by_kind.setdefault(row, []).append(number)
        for row, numbers in numbers_by_kind.items():
            kind = _kind(row, backends, algorithms)
            if kind is not None:
                self._places[kind] = numbers
                known[numbers] = True
        self.times[0, place] = seconds
        self.times[1, place] = ~is_async
        for kind, places in self._places.items():
            if kind.op not in _SYNCHRONIZING:
                self.times[0, places] *= -1
        self.times[:, ~known | np.isinf(self.times[0])] = _MISSING

    def agreed(self) -> dict[TimedKind, tuple[NDArray[np.float64], bool]]:
        """Return, for every kind, the seconds of its operations, and whether all of them were blocking.

        Only operations count that all ranks have times of. Call it when `times` holds the smallest values of all ranks:
        then the result is equal on all ranks, and in the same order.
        """
        found = {}
        for kind, places in sorted(self._places.items(), key=lambda item: item[0].key):
            seconds, blocking = self.times[:, places]
            is_timed = np.isfinite(seconds)
            if is_timed.any():
                found[kind] = np.abs(seconds[is_timed]), bool(blocking[is_timed].all())
        return found


def _kind(row: tuple[int, ...], backends: Sequence[str], algorithms: Sequence[str]) -> TimedKind | None:
    kind, dtype, reduction, nbytes, backend, algorithm = row
    op = _native.OP_NAMES[kind]
    if op not in LEARNABLE:
        return None
    carrier = join_carrier(backends[backend], algorithms[algorithm - 1] if algorithm else "")
    reduces = op in _native.REDUCING_OPS
    return TimedKind(
        op, _native.DTYPE_NAMES[dtype], _native.REDUCE_NAMES[reduction] if reduces else None, nbytes, carrier
    )
