"""Runs cases on one rank: prepares the arrays, issues the operation, and compares the result with NumPy.

Every array that an operation may write is surrounded by guard items; arrays that it must not write are compared, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hocket as hk
from hocket.comm.policy import DefaultPolicy

from ..tier import sample
from .cases import Case, all_cases, large_cases, most_items
from .data import Array, Pool
from .outcome import check

_GUARD = 3
_MOST_IN_FLIGHT = 12


@dataclass
class Ready:
    """A case with its arrays: `issue(async_op)` returns the Works; then `written` must equal `expected`."""

    case: Case
    issue: Callable[[bool], list[hk.Work]]
    written: Array
    expected: Array
    untouched: tuple[tuple[Array, Array], ...] = ()
    reduced: bool = False
    signed_zeros: bool = True

    def verify(self, rank: int) -> None:
        check(self.written, self.expected, self.case, rank, reduced=self.reduced, signed_zeros=self.signed_zeros)
        for array, expected in self.untouched:
            check(array, expected, f"{self.case}: must stay as it was", rank)


class Cases:
    """Makes `Ready` cases for one rank of a communicator; the inputs come from the pools of `seed`."""

    def __init__(self, comm: hk.Communicator, cases: Sequence[Case], seed: int = 0) -> None:
        self._comm = comm
        self._pools = {name: Pool(name, comm.size, most, seed) for name, most in most_items(cases, comm.size).items()}

    def prepare(self, case: Case) -> Ready:
        ready = _PREPARE[case.op](self, case)
        ready.signed_zeros = isinstance(self._comm.policy, DefaultPolicy)
        return ready

    def pool(self, case: Case) -> Pool:
        return self._pools[case.dtype]

    def given(self, case: Case, rank: int, blocks: int = 1) -> Array:
        """The input of `rank`: a window of its pool, which must not be written."""
        begin = Pool.offset(case.number)
        return self.pool(case).ranks[rank][begin : begin + case.count * blocks]

    def reduced(self, case: Case, blocks: int = 1) -> Array:
        begin = Pool.offset(case.number)
        return self.pool(case).reduced(case.reduction)[begin : begin + case.count * blocks]

    def _in_place(self, case: Case, expected: Array, call: Callable[..., Any], reduced: bool = False) -> Ready:
        x, guards = _guarded(self.given(case, self._comm.rank))
        return Ready(case, _issue(call, x), x, expected, guards, reduced)

    def _into_out(
        self, case: Case, x: Array, expected: Array, call: Callable[..., Any], reduced: bool = False
    ) -> Ready:
        out, guards = _guarded(np.flip(expected) if expected.size else expected)
        return Ready(case, _issue(call, out, x.copy()), out, expected, guards, reduced)

    def all_reduce(self, case: Case) -> Ready:
        return self._in_place(case, self.reduced(case), _with(self._comm.all_reduce, op=case.reduction), True)

    def reduce(self, case: Case) -> Ready:
        at_root = self._comm.rank == case.root
        expected = self.reduced(case) if at_root else self.given(case, self._comm.rank)
        return self._in_place(case, expected, _with(self._comm.reduce, root=case.root, op=case.reduction), at_root)

    def broadcast(self, case: Case) -> Ready:
        return self._in_place(case, self.given(case, case.root), _with(self._comm.broadcast, root=case.root))

    def barrier(self, case: Case) -> Ready:
        nothing = np.zeros(0, np.uint8)
        return Ready(case, _issue(self._comm.barrier), nothing, nothing)

    def all_gather(self, case: Case) -> Ready:
        blocks = [self.given(case, rank) for rank in range(self._comm.size)]
        return self._into_out(case, blocks[self._comm.rank], np.concatenate(blocks), self._comm.all_gather)

    def reduce_scatter(self, case: Case) -> Ready:
        rank, size = self._comm.rank, self._comm.size
        expected = self.reduced(case, size)[rank * case.count : (rank + 1) * case.count]
        call = _with(self._comm.reduce_scatter, op=case.reduction)
        return self._into_out(case, self.given(case, rank, size), expected, call, True)

    def all_to_all(self, case: Case) -> Ready:
        rank, size = self._comm.rank, self._comm.size
        mine = slice(rank * case.count, (rank + 1) * case.count)
        expected = np.concatenate([self.given(case, peer, size)[mine] for peer in range(size)])
        return self._into_out(case, self.given(case, rank, size), expected, self._comm.all_to_all)

    def send_recv(self, case: Case) -> Ready:
        """A ring: every rank sends to the right and receives from the left."""
        rank, size, tag = self._comm.rank, self._comm.size, case.number % 7
        x = self.given(case, rank).copy()
        expected = self.given(case, (rank - 1) % size)
        out, guards = _guarded(np.flip(expected))

        def issue(async_op: bool) -> list[hk.Work]:
            receive = self._comm.irecv(out, (rank - 1) % size, tag)
            if async_op:
                return [self._comm.isend(x, (rank + 1) % size, tag), receive]
            self._comm.send(x, (rank + 1) % size, tag)
            receive.wait()
            return []

        return Ready(case, issue, out, expected, guards)


_PREPARE: dict[str, Callable[[Cases, Case], Ready]] = {
    name: getattr(Cases, name)
    for name in (
        "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "reduce_scatter", "all_to_all", "send_recv",
    )
}  # fmt: skip


def some_cases(num_ranks: int) -> list[Case]:
    """All cases in the full tier, otherwise a sample of them."""
    return sample(all_cases(num_ranks), 600 if num_ranks < 8 else 200)


def some_large_cases(num_ranks: int) -> list[Case]:
    """All large cases in the full tier, otherwise a sample of them."""
    return sample(large_cases(num_ranks), 10 if num_ranks < 8 else 4)


def run_blocking(comm: hk.Communicator, cases: Sequence[Case], seed: int = 0) -> int:
    """Run the cases one after another; return their number."""
    maker = Cases(comm, cases, seed)
    for case in cases:
        ready = maker.prepare(case)
        ready.issue(False)
        ready.verify(comm.rank)
    return len(cases)


def run_async(comm: hk.Communicator, cases: Sequence[Case], seed: int = 0) -> int:
    """Run several cases at a time, and wait for them in an order that every rank draws for itself."""
    maker = Cases(comm, cases, seed)
    rng = random.Random(comm.rank)
    begin = 0
    while begin < len(cases):
        batch = [maker.prepare(case) for case in cases[begin : begin + rng.randint(1, _MOST_IN_FLIGHT)]]
        works = [work for ready in batch for work in ready.issue(True)]
        rng.shuffle(works)
        for work in works:
            if rng.random() < 0.2:
                work.test()
            work.wait()
        for ready in batch:
            ready.verify(comm.rank)
        begin += len(batch)
    return len(cases)


def _guarded(initial: Array) -> tuple[Array, tuple[tuple[Array, Array], ...]]:
    """Copy `initial` between guard items; return the copy, and the guards with their expected content."""
    size = initial.size
    whole = np.empty(size + 2 * _GUARD, initial.dtype)
    whole.view(np.uint8).reshape(-1)[:] = 0x01
    whole[_GUARD : _GUARD + size] = initial
    guard = whole[:_GUARD].copy()
    return whole[_GUARD : _GUARD + size], ((whole[:_GUARD], guard), (whole[_GUARD + size :], guard))


def _with(call: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return lambda *arrays, async_op: call(*arrays, **arguments, async_op=async_op)


def _issue(call: Callable[..., Any], *arrays: Array) -> Callable[[bool], list[hk.Work]]:
    def issue(async_op: bool) -> list[hk.Work]:
        work = call(*arrays, async_op=async_op)
        return [work] if async_op else []

    return issue
