"""Collectives on arrays in shared memory, compared with NumPy; the records show which of them ran in place."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket import _native

from ..naming import raises
from ..tier import covering

EAGER = _native.CONSTANTS["eager_bytes"]
DTYPES = ("float32", "float64", "int32", "float16", "uint8", "complex64")
COUNTS = (1, EAGER // 4 + 1, 40_001, 300_000)
# Ranks, type, items, in shared memory.
CASES = covering(product((2, 3, 4), DTYPES, COUNTS, (True, False)), lambda case: (case[:1], case[1], case[2:]), 1)


def _values(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng([shape[-1], DTYPES.index(dtype)]).integers(0, 30, shape).astype(dtype)


class _Ranks:
    """The inputs of all ranks of a communicator, and the expected results."""

    def __init__(self, comm: hk.Communicator, dtype: str, count: int, is_shared: bool) -> None:
        self.comm, self.dtype, self.is_shared = comm, dtype, is_shared
        self.data = _values(dtype, (comm.size, comm.size, count))
        self.count = count

    def array(self, content: np.ndarray[Any, Any], is_shared: bool | None = None) -> np.ndarray[Any, Any]:
        if not (self.is_shared if is_shared is None else is_shared):
            return content.copy()
        made: np.ndarray[Any, Any] = self.comm.symmetric_like(content)
        return made

    def check(self, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], op: str, *, in_place: bool) -> None:
        np.testing.assert_array_equal(got, expected, err_msg=f"{op} of {self.count} {self.dtype}")
        record = next(each for each in reversed(self.comm.records()) if each.op == op)
        contribution = record.nbytes * (self.comm.size if op in ("reduce_scatter", "all_to_all", "scatter") else 1)
        assert record.in_place == (in_place and contribution > EAGER), record

    def reductions(self) -> None:
        comm, rank, data = self.comm, self.comm.rank, self.data
        own = data[rank, 0]
        for op in ("sum",) if self.dtype == "complex64" else ("sum", "min"):
            fold = np.sum if op == "sum" else np.min
            total = fold(data[:, 0], axis=0).astype(self.dtype)
            x = self.array(own)
            comm.all_reduce(x, op)
            self.check(x, total, "all_reduce", in_place=self.is_shared)
            x[...] = own
            comm.scan(x, op)
            self.check(x, fold(data[: rank + 1, 0], axis=0).astype(self.dtype), "scan", in_place=self.is_shared)
            for root in range(comm.size):
                x[...] = own
                comm.reduce(x, root, op)
                self.check(x, total if rank == root else own, "reduce", in_place=self.is_shared)
            out = np.zeros_like(own)
            comm.reduce_scatter(out, self.array(data[rank]), op)
            self.check(out, fold(data[:, rank], axis=0).astype(self.dtype), "reduce_scatter", in_place=self.is_shared)

    def copies(self) -> None:
        comm, rank, size, data = self.comm, self.comm.rank, self.comm.size, self.data
        own, shape = data[rank, 0], (size, self.count)
        for shares_in, shares_out in product((True, False), repeat=2) if self.is_shared else [(False, False)]:
            some = shares_in or shares_out
            out = self.array(np.zeros(shape, self.dtype), shares_out)
            comm.all_gather(out, self.array(own, shares_in))
            self.check(out, data[:, 0], "all_gather", in_place=some)
            out[...] = 0
            comm.all_to_all(out, self.array(data[rank], shares_in))
            self.check(out, data[:, rank], "all_to_all", in_place=some)
            for root in range(size):
                is_root = rank == root
                out[...] = 0
                comm.gather(out if is_root else None, self.array(own, shares_in), root)
                self.check(out, data[:, 0] if is_root else np.zeros_like(out), "gather", in_place=some)
                block = self.array(np.zeros_like(own), shares_out)
                comm.scatter(block, self.array(data[root], shares_in) if is_root else None, root)
                self.check(block, data[root, rank], "scatter", in_place=some)
                x = self.array(own, shares_in if is_root else shares_out)
                comm.broadcast(x, root)
                self.check(x, data[root, 0], "broadcast", in_place=shares_in)
        if self.is_shared:
            out = self.array(np.zeros(shape, self.dtype))
            out[rank] = own
            comm.all_gather(out, out[rank])
            self.check(out, data[:, 0], "all_gather", in_place=True)

    def counts(self) -> None:
        comm, rank, size = self.comm, self.comm.rank, self.comm.size
        counts = [self.count + 3 * each for each in range(size)]
        given = [_values(self.dtype, (sum(counts) + each,))[each:] for each in range(size)]
        ends = np.cumsum([0, *counts])
        mine = slice(ends[rank], ends[rank + 1])
        blocks = np.concatenate([given[each][: counts[each]] for each in range(size)])
        out = self.array(np.zeros(sum(counts), self.dtype))
        comm.all_gatherv(out, self.array(given[rank][: counts[rank]]), counts)
        np.testing.assert_array_equal(out, blocks)
        part = self.array(np.zeros(counts[rank], self.dtype))
        comm.reduce_scatterv(part, self.array(given[rank]), counts)
        np.testing.assert_array_equal(part, np.sum(given, axis=0).astype(self.dtype)[mine])
        comm.gatherv(out if rank == 0 else None, self.array(given[rank][: counts[rank]]), counts, 0)
        if rank == 0:
            np.testing.assert_array_equal(out, blocks)
        comm.scatterv(part, self.array(given[0]) if rank == 0 else None, counts, 0)
        np.testing.assert_array_equal(part, given[0][mine])
        in_counts, out_counts = ([counts[(rank + each) % size] for each in range(size)] for _ in range(2))
        x = self.array(given[rank][: sum(in_counts)])
        comm.all_to_allv(out, x, out_counts, in_counts)
        starts = [int(np.sum([counts[(each + to) % size] for to in range(rank)])) for each in range(size)]
        expected = [given[each][starts[each] : starts[each] + counts[(each + rank) % size]] for each in range(size)]
        np.testing.assert_array_equal(out, np.concatenate(expected))


def _run(comm: hk.Communicator, cases: list[tuple[str, int, bool]]) -> int:
    comm.all_reduce(comm.empty(EAGER, "uint8"))  # after the first operation all ranks have mapped the memory
    comm.all_reduce(comm.empty(2 * EAGER, "uint8"))
    for dtype, count, is_shared in cases:
        ranks = _Ranks(comm, dtype, count, is_shared)
        ranks.reductions()
        ranks.copies()
        ranks.counts()
    return len(cases)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_every_collective(num_ranks: int) -> None:
    cases = [case for ranks, *case in CASES if ranks == num_ranks]
    assert cases
    assert hk.spawn(_run, num_ranks, cases, timeout=190) == [len(cases)] * num_ranks


def _mixed(comm: hk.Communicator) -> bool:
    """If one rank's array is not shared, all ranks stage; sub-communicators use the same memory."""
    comm.all_reduce(comm.empty(2 * EAGER))
    n = 100_000
    x = comm.empty(n) if comm.rank else np.zeros(n, np.float32)
    x[...] = comm.rank
    comm.all_reduce(x)
    assert (x == 3).all() and not comm.records()[-1].in_place
    pair = comm.group([0, 2]) if comm.rank != 1 else None
    if pair is not None:
        y = comm.empty(n)
        for _ in range(2):
            y[...] = comm.rank
            pair.all_reduce(y)
            assert (y == 2).all()
        assert pair.records()[-1].in_place
    z = comm.empty((4, n))
    z[...] = comm.rank
    for row, work in [(row, comm.all_reduce(row, async_op=True)) for row in z]:
        work.wait()
        assert (row == 3).all()
    strided = comm.empty((n, 2))
    strided[...] = comm.rank
    comm.all_reduce(strided[:, 0])  # worked on in a copy
    assert (strided[:, 0] == 3).all() and (strided[:, 1] == comm.rank).all()
    return True


@pytest.mark.timeout(60)
def test_mixed_memory() -> None:
    assert all(hk.spawn(_mixed, 3, timeout=50))


def _bitwise(comm: hk.Communicator) -> bytes:
    """The same bits as with staging: sums of floats in rank order."""
    given = np.random.default_rng(comm.rank).standard_normal(200_003).astype(np.float32)
    staged, shared = given.copy(), comm.symmetric_like(given)
    comm.all_reduce(staged)
    for _ in range(2):
        shared[...] = given
        comm.all_reduce(shared)
    assert comm.records()[-1].in_place
    assert shared.tobytes() == staged.tobytes()
    return staged.tobytes()


@pytest.mark.timeout(60)
def test_the_same_bits_as_staged() -> None:
    assert len(set(hk.spawn(_bitwise, 3, timeout=50))) == 1


def _messages(comm: hk.Communicator) -> bool:
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (7, 20_000, 300_000, 1_500_003):
        given = np.random.default_rng([rank, count]).integers(0, 99, count).astype(np.float32)
        expected = np.random.default_rng([left, count]).integers(0, 99, count).astype(np.float32)
        for sends_shared, receives_shared in product((True, False), repeat=2):
            x = comm.symmetric_like(given) if sends_shared else given.copy()
            out = comm.zeros(count) if receives_shared else np.zeros(count, np.float32)
            # All send first: a message without a receive is copied out of the sender's array.
            comm.send(x, right, tag=3)
            x[...] = -1
            comm.recv(out, left, tag=3)
            np.testing.assert_array_equal(out, expected)
            out[...] = 0
            x[...] = given
            works = [comm.irecv(out, left, tag=1), comm.isend(x, right, tag=1)]
            for work in works:
                work.wait()
            np.testing.assert_array_equal(out, expected)
            # Several at the same time, matched by tag; one is received out of order.
            parts = [comm.symmetric_like(given + each) for each in range(3)]
            sent = [comm.isend(each, right, tag=10 + number) for number, each in enumerate(parts)]
            for number in (2, 0, 1):
                comm.recv(out, left, tag=10 + number)
                np.testing.assert_array_equal(out, expected + number)
            for work in sent:
                work.wait()
    # The receive is posted first: a message that was copied out before is complete for its sender, like a short one.
    small = np.zeros(100_000, np.float32)
    awaited = comm.irecv(small, left, tag=5)
    comm.barrier()
    big = comm.symmetric_like(np.full(500_000, rank, np.float32))
    wrong = comm.isend(big, right, tag=5)
    with raises(hk.CollectiveMismatch, names=("2000000 bytes", "float32")):
        awaited.wait()
    with raises(hk.CollectiveMismatch, names=("send", "2000000 bytes")):
        wrong.wait()
    comm.barrier()
    return True


@pytest.mark.timeout(100)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_messages(num_ranks: int) -> None:
    assert all(hk.spawn(_messages, num_ranks, timeout=90))


def _schedules(comm: hk.Communicator) -> bool:
    given = np.random.default_rng(comm.rank).integers(0, 99, 400_000).astype(np.float64)
    inputs = [np.random.default_rng(each).integers(0, 99, 400_000).astype(np.float64) for each in range(comm.size)]
    for algorithm in ("ring", "recursive_doubling", "circulant", "double_tree"):
        x = comm.symmetric_like(given)
        comm.all_reduce(x, algorithm=algorithm)
        np.testing.assert_array_equal(x, np.sum(inputs, axis=0))
    return True


@pytest.mark.timeout(100)
def test_schedules() -> None:
    assert all(hk.spawn(_schedules, 4, timeout=90))
