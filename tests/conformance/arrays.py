"""Runs every operation on arrays with a given layout, and compares with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hocket as hk

from .data import Array, make_items, reduce_in_rank_order
from .outcome import check

Holder = Any
"""An array that is passed to hocket: a NumPy array, a torch tensor, a memoryview."""

# make(shape, dtype) -> (array to pass to hocket, NumPy view of its items, NumPy view of the memory around it).
Layout = Callable[[tuple[int, ...], np.dtype], tuple[Holder, Array, Array]]


class Arrays:
    """The arrays of one rank in one layout."""

    def __init__(self, comm: hk.Communicator, dtype: np.dtype, shape: tuple[int, ...], layout: Layout) -> None:
        self._comm = comm
        self._dtype = dtype
        self._shape = shape
        self._layout = layout
        self.given = [self.items(rank) for rank in range(comm.size)]
        self.mine = self.given[comm.rank]
        self.num_run = 0

    def items(self, rank: int, blocks: int | None = None) -> Array:
        shape = self._shape if blocks is None else (blocks, *self._shape)
        return make_items(self._dtype.name, int(np.prod(shape)), rank).reshape(shape)

    def run(self, what: str, initial: Array, expected: Array, call: Callable[[Holder], Any], reduced: bool) -> None:
        """Call with an array of the layout; then compare the items, and check the memory between them."""
        holder, view, memory = self._layout(initial.shape, self._dtype)
        view[...] = initial
        before = memory.copy()
        self.num_run += 1
        result = call(holder)
        if isinstance(result, hk.Work):
            result.wait()
        check(view, expected, what, self._comm.rank, reduced=reduced)
        view[...] = initial
        check(memory, before, f"{what}: memory beside the items", self._comm.rank)

    def fill(self, items: Array) -> Holder:
        holder, view, _ = self._layout(items.shape, self._dtype)
        view[...] = items
        return holder


def run_all_operations(
    comm: hk.Communicator, dtype: np.dtype, shape: tuple[int, ...], layout: Layout, name: str
) -> int:
    """Run every operation, blocking and asynchronous, with all arrays in the layout; return the number of calls."""
    arrays = Arrays(comm, dtype, shape, layout)
    rank, size = comm.rank, comm.size
    op = "max"
    reduced = reduce_in_rank_order(arrays.given, op)
    blocks = [arrays.items(100 + peer, size) for peer in range(size)]
    reduced_blocks = reduce_in_rank_order(blocks, op)
    empty, empty_blocks = np.zeros_like(arrays.mine), np.zeros_like(blocks[0])
    mine, x = arrays.mine, arrays.fill(arrays.mine)
    x_blocks = arrays.fill(blocks[rank])
    for later in (False, True):
        case = f"{name} {dtype} {shape}{' async' if later else ''}: "
        for root in range(size):
            at_root = rank == root
            arrays.run(f"{case}reduce to {root}", mine, reduced if at_root else mine,
                       lambda a, root=root, later=later: comm.reduce(a, root, op, async_op=later), at_root)  # fmt: skip
            arrays.run(f"{case}broadcast from {root}", mine, arrays.given[root],
                       lambda a, root=root, later=later: comm.broadcast(a, root, async_op=later), False)  # fmt: skip
        arrays.run(
            f"{case}all_reduce", mine, reduced, lambda a, later=later: comm.all_reduce(a, op, async_op=later), True
        )
        arrays.run(f"{case}all_gather", empty_blocks, np.stack(arrays.given),
                   lambda a, later=later: comm.all_gather(a, x, async_op=later), False)  # fmt: skip
        arrays.run(f"{case}reduce_scatter", empty, reduced_blocks[rank],
                   lambda a, later=later: comm.reduce_scatter(a, x_blocks, op, async_op=later), True)  # fmt: skip
        arrays.run(f"{case}all_to_all", empty_blocks, np.stack([block[rank] for block in blocks]),
                   lambda a, later=later: comm.all_to_all(a, x_blocks, async_op=later), False)  # fmt: skip
        send = comm.isend(x, (rank + 1) % size)
        receive = comm.irecv if later else comm.recv
        arrays.run(f"{case}recv", empty, arrays.given[rank - 1],
                   lambda a, receive=receive: receive(a, (rank - 1) % size), False)  # fmt: skip
        send.wait()
    return arrays.num_run
