"""Which part of which chunk goes where, when an array gets other chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.dask.exchange import Seat, exchange
from hocket.errors import InvalidType

Index = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Overlap:
    """The common part of a chunk and a new chunk.

    Args:
        new: index of the new chunk.
        source: where it is in the chunk.
        target: where it is in the new chunk.
        size: number of elements.
    """

    new: Index
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    size: int


@dataclass(frozen=True)
class Rechunking:
    """New chunks of an array whose axes may be in another order.

    Args:
        axes: for each axis of the new array, that of the old one.
        chunks: of the old array, with its axes in the new order.
        new_chunks: of the new array.
    """

    axes: tuple[int, ...]
    chunks: Chunks
    new_chunks: Chunks

    def overlaps(self, index: Index) -> Iterator[Overlap]:
        """Yield the parts of a chunk; its index has the new order of axes."""
        along = [
            _overlaps_along(old, new, place)
            for old, new, place in zip(self.chunks, self.new_chunks, index, strict=True)
        ]
        for parts in itertools.product(*along):
            yield Overlap(
                tuple(part[0] for part in parts),
                tuple(part[1] for part in parts),
                tuple(part[2] for part in parts),
                int(np.prod([part[1].stop - part[1].start for part in parts], dtype=np.int64)),
            )

    def new_shape(self, index: Index) -> Index:
        """Return the shape of a new chunk."""
        return tuple(sizes[place] for sizes, place in zip(self.new_chunks, index, strict=True))

    def new_indices(self) -> list[Index]:
        """Return the indices of all new chunks."""
        return list(itertools.product(*(range(len(sizes)) for sizes in self.new_chunks)))

    def placed(self, holders: Mapping[Index, int], num_workers: int) -> dict[Index, int]:
        """Choose a worker for each new chunk: the one that has most of it, among those that have not got their share.

        Args:
            holders: for each chunk, with its axes in the new order, the number of the worker that has it.
            num_workers: number of workers.
        """
        has: dict[Index, list[int]] = {each: [0] * num_workers for each in self.new_indices()}
        for index, holder in holders.items():
            for part in self.overlaps(index):
                has[part.new][holder] += part.size
        share = sum(map(sum, has.values())) / num_workers
        got = [0] * num_workers
        placed: dict[Index, int] = {}
        # Who has much of a chunk is asked first; the rest fills what is left.
        for new in sorted(has, key=lambda each: -max(has[each])):
            size = sum(has[new])
            free = [worker for worker in range(num_workers) if got[worker] + size / 2 <= share] or range(num_workers)
            placed[new] = min(free, key=lambda worker: (-has[new][worker], got[worker]))
            got[placed[new]] += size
        return placed


def _overlaps_along(old: Sequence[int], new: Sequence[int], place: int) -> list[tuple[int, slice, slice]]:
    """Return, along one axis, the new chunks that a chunk overlaps, with the slices of both."""
    begin = sum(old[:place])
    end = begin + old[place]
    found, new_begin = [], 0
    for number, size in enumerate(new):
        low, high = max(begin, new_begin), min(end, new_begin + size)
        if low < high or (begin == end == new_begin and size == 0):
            found.append((number, slice(low - begin, high - begin), slice(low - new_begin, high - new_begin)))
        new_begin += size
    return found


def exchange_chunks(
    seat: Seat,
    chunks: Sequence[Any],
    indices: Sequence[Sequence[Index]],
    plan: Rechunking,
    placed: Mapping[Index, int],
    dtype: Any,
) -> list[Any]:
    """Do one worker's part; return its new chunks, in the order of `placed`.

    Args:
        seat: of this worker.
        chunks: those that it has.
        indices: for each worker, of its chunks, with their axes in the new order.
        plan: of the array.
        placed: the worker of each new chunk.
        dtype: of the array.
    """
    outgoing: list[list[tuple[Index, tuple[slice, ...], Any]]] = [[] for _ in range(seat.size)]
    for index, chunk in zip(indices[seat.rank], chunks, strict=True):
        own = chunk if isinstance(chunk, np.ndarray) else np.asarray(chunk)
        if type(own) is not np.ndarray or own.dtype != dtype:
            raise InvalidType(f"a chunk is a {type(own).__name__} of {own.dtype}, but Dask says ndarray of {dtype}")
        turned = own.transpose(plan.axes)
        for part in plan.overlaps(index):
            piece = turned[part.source]
            to = placed[part.new]
            # What travels is copied once, into the order in which it is read; what stays is copied at its target.
            outgoing[to].append((part.new, part.target, piece if to == seat.rank else np.ascontiguousarray(piece)))
    incoming = exchange(seat, outgoing)
    mine = {each: np.empty(plan.new_shape(each), dtype) for each, worker in placed.items() if worker == seat.rank}
    for from_one in incoming:
        for new, target, piece in from_one:
            mine[new][target] = piece
    return list(mine.values())
