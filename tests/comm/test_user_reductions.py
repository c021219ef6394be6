"""User-defined reductions, compared with NumPy."""

from __future__ import annotations

import asyncio
import functools
import importlib
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.own_ranks  # registered reductions cannot be removed


def _larger_magnitude(a: Any, b: Any) -> Any:
    """Not commutative: of two values with equal magnitude, the first is kept."""
    where = importlib.import_module("torch").where if hasattr(a, "new_empty") else np.where
    return where(abs(b) > abs(a), b, a)


def _in_place(a: Any, b: Any) -> Any:
    a *= 10
    a += b
    return a


def _values(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(-9, 10, count)


def _run(comm: hk.Communicator, backend: str) -> bool:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    rank, size = comm.rank, comm.size
    for name, function in {"larger magnitude": _larger_magnitude, "digits": _in_place}.items():
        hk.register_reduction(name, function)
        hk.register_reduction(name, function)  # again, with the same function
        op: Any = name
        for count in (0, 3, 20_000):
            given = [_values(each, count * size) for each in range(size)]
            fold = functools.partial(functools.reduce, function)
            total = fold([each.copy() for each in given])
            x = given[rank].copy()
            comm.all_reduce(x, op, backend=backend)
            np.testing.assert_array_equal(x, total)
            x = given[rank].copy()
            comm.reduce(x, root=size - 1, op=op, backend=backend)
            np.testing.assert_array_equal(x, total if rank == size - 1 else given[rank])
            x = given[rank].copy()
            work = comm.scan(x, op=op, backend=backend, async_op=True)
            work.wait()
            assert work.done and work.exception() is None
            np.testing.assert_array_equal(x, fold([each.copy() for each in given[: rank + 1]]))
            out = np.zeros(count, int)
            comm.reduce_scatter(out, given[rank], op, backend=backend)
            np.testing.assert_array_equal(out, total[rank * count : (rank + 1) * count])
            counts = [2 * count if each == 0 else 0 if each == 1 else count for each in range(size)]
            out = np.zeros(counts[rank], int)
            work = comm.reduce_scatterv(out, given[rank], counts, op, backend=backend, async_op=True)
            while not work.test():
                pass
            ends = np.cumsum([0, *counts])
            np.testing.assert_array_equal(out, total[ends[rank] : ends[rank + 1]])
    comm.finalize()
    return True


@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_against_numpy(backend: str) -> None:
    assert all(hk.spawn(_run, 3, backend, timeout=50))


def _tensors(comm: hk.Communicator) -> bool:
    torch = importlib.import_module("torch")
    hk.register_reduction("larger magnitude", _larger_magnitude)
    x = torch.tensor([1.0, -5.0, 2.0]) * (1 if comm.rank == 0 else -2)
    comm.all_reduce(x, "larger magnitude")
    assert x.tolist() == [-2.0, 10.0, -4.0]

    async def wait() -> None:
        await comm.all_reduce(x, "larger magnitude", async_op=True)

    asyncio.run(wait())
    buffer = bytearray([comm.rank + 3, 1])
    comm.all_reduce(buffer, "larger magnitude")
    assert buffer == bytearray([4, 1])
    return True


def test_tensors_and_buffers() -> None:
    assert all(hk.spawn(_tensors, 2, timeout=50))


def _wrong(comm: hk.Communicator) -> bool:
    def fail(a: Any, b: Any) -> Any:
        raise ZeroDivisionError

    x = np.ones(3)
    with raises(hk.InvalidArgument, names=("op", "'sum'", repr("unheard of"))):
        comm.all_reduce(x, "unheard of")
    with raises(hk.InvalidArgument, names=("name", "'sum'")):
        hk.register_reduction("sum", fail)
    with raises(hk.InvalidType, names=("function", "3")):
        hk.register_reduction("three", 3)  # type: ignore[arg-type]
    hk.register_reduction("fails", fail)
    with raises(hk.InvalidArgument, names="'fails'"):
        hk.register_reduction("fails", _in_place)
    with pytest.raises(ZeroDivisionError):
        comm.all_reduce(x, "fails")
    with raises(hk.InvalidType, names=("x", "NumPy", "list")):
        comm.all_reduce([1.0], "fails")  # type: ignore[call-overload]
    with raises(hk.InvalidType, names=("x", "read-only")):
        comm.all_reduce(b"1234", "fails")
    comm.all_reduce(x)
    assert (x == comm.size).all()
    return True


def test_wrong_calls() -> None:
    assert all(hk.spawn(_wrong, 2, timeout=50))


def _is_done_with_its_result(comm: hk.Communicator) -> bool:
    hk.register_reduction("added", np.add)
    x = np.full(4, comm.rank + 1)
    op: Any = "added"
    work = comm.all_reduce(x, op, async_op=True)
    assert work is not None
    comm.barrier()  # later in the issue order, so all arrays are gathered now
    assert not work.done or (x == 3).all()
    work.wait(timeout=20)
    assert work.done and (x == 3).all()
    return True


def test_done_means_that_the_result_is_there() -> None:
    assert all(hk.spawn(_is_done_with_its_result, 2, timeout=50))
