"""NumPy arrays with all memory layouts: results are written back, and the memory between items is not touched."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk

from .arrays import Holder, run_all_operations
from .data import DTYPES, Array

_Made = tuple[Holder, Array, Array]


def _of_memory(count: int, dtype: np.dtype) -> Array:
    memory = np.zeros(count, dtype)
    memory.view(np.uint8)[...] = 1
    return memory


def _contiguous(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _of_memory(int(np.prod(shape)), dtype)
    x = memory.reshape(shape)
    return x, x, memory


def _transposed(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _of_memory(int(np.prod(shape)), dtype).reshape(shape[::-1])
    return memory.T, memory.T, memory


def _stepped(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _of_memory(int(np.prod(shape)) * 3 ** len(shape), dtype).reshape([3 * extent for extent in shape])
    x = memory[(*[slice(1, None, 3)] * len(shape), ...)]
    return x, x, memory


def _reversed(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _of_memory(int(np.prod(shape)) * 2 ** len(shape), dtype).reshape([2 * extent for extent in shape])
    x = memory[(*[slice(None, None, -2)] * len(shape), ...)]
    return x, x, memory


def _inner_part(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _of_memory(int(np.prod([extent + 2 for extent in shape])), dtype).reshape([extent + 2 for extent in shape])
    x = memory[(*[slice(1, -1)] * len(shape), ...)]
    return x, x, memory


def _misaligned(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = np.ones(nbytes + 2, np.uint8)
    x = memory[1:-1].view(dtype).reshape(shape)
    return x, x, memory


_LAYOUTS = {
    make.__name__.strip("_"): make for make in (_contiguous, _transposed, _stepped, _reversed, _inner_part, _misaligned)
}
_SHAPES = ((), (1,), (7,), (4, 5), (2, 3, 4), (0, 3), (3, 0), (70, 1, 90), (1, 1, 1))


def _run(comm: hk.Communicator, dtype: str) -> int:
    kinds = [(shape, name) for shape in _SHAPES for name in _LAYOUTS]
    return sum(run_all_operations(comm, DTYPES[dtype], shape, _LAYOUTS[name], name) for shape, name in kinds)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "bool"])
def test_layouts(dtype: str) -> None:
    num_calls = 2 * (5 + 2 * 2)  # of them two rooted ones with each root
    assert hk.spawn(_run, 2, dtype, timeout=50) == [len(_SHAPES) * len(_LAYOUTS) * num_calls] * 2


def _run_inputs(comm: hk.Communicator) -> None:
    """An array that is only read may repeat its items or be read-only."""
    row = np.arange(5.0) + comm.rank
    repeated = np.broadcast_to(row, (3, 5))
    assert not repeated.flags.writeable
    out = np.zeros((comm.size, 3, 5))
    comm.all_gather(out, repeated)
    for rank in range(comm.size):
        assert (out[rank] == np.arange(5.0) + rank).all()
    constant = np.array([4, 5, 6])
    constant.flags.writeable = False
    received = np.zeros(3, np.int64)
    comm.broadcast(constant if comm.rank == 0 else received, 0)
    comm.reduce(constant if comm.rank != 1 else received, 1)
    assert comm.rank != 1 or received.tolist() == [4 * comm.size, 5 * comm.size, 6 * comm.size]
    work = comm.isend(constant, (comm.rank + 1) % comm.size)
    comm.recv(received, (comm.rank - 1) % comm.size)
    work.wait()
    assert received.tolist() == [4, 5, 6]


@pytest.mark.timeout(30)
def test_inputs_that_cannot_be_written() -> None:
    hk.spawn(_run_inputs, 3, timeout=25)


def _run_aliases(comm: hk.Communicator) -> None:
    """The two allowed overlaps: x = out[rank] of all_gather, out = x[rank] of reduce_scatter."""
    for count in (1, 100, 5_000, 700_001):
        out = np.full((comm.size, count), -1.0)
        out[comm.rank] = comm.rank + np.arange(count)
        comm.all_gather(out, out[comm.rank])
        assert (out == np.arange(comm.size)[:, None] + np.arange(count)).all(), count
        x = np.tile(np.arange(comm.size)[:, None] * 10.0, (1, count)) + comm.rank
        others = np.delete(x, comm.rank, 0).copy()
        comm.reduce_scatter(x[comm.rank], x)
        assert (x[comm.rank] == comm.size * comm.rank * 10.0 + sum(range(comm.size))).all(), count
        assert (np.delete(x, comm.rank, 0) == others).all(), count


@pytest.mark.timeout(30)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_allowed_overlaps(num_ranks: int) -> None:
    hk.spawn(_run_aliases, num_ranks, timeout=25)
