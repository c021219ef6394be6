"""Bitwise and logical reductions, complex and unsigned numbers, and scan, compared with NumPy on every backend."""

from __future__ import annotations

import functools
import importlib
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket as hk

from ..backends import WITH_COLLECTIVES, limit_threads, with_most_ranks
from ..load import scaled
from ..naming import raises

UFUNCS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "band": np.bitwise_and,
    "bor": np.bitwise_or, "bxor": np.bitwise_xor, "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
}  # fmt: skip
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
BITS = ("band", "bor", "bxor", "land", "lor", "lxor")
CASES = [
    *((op, dtype) for op in BITS for dtype in (*SIGNED, *UNSIGNED, "bool")),
    *((op, dtype) for op in ("sum", "prod", "min", "max") for dtype in UNSIGNED),
    *((op, dtype) for op in ("sum", "prod", "avg") for dtype in COMPLEX),
    *((op, dtype) for op in ("min", "max") for dtype in ("float32", "float64")),
    *((op, "int16") for op in ("sum", "prod")),
]
COUNTS = (1, 7, 700, 70_000)  # inline, eager, staged

Array = np.ndarray[Any, Any]


def _values(seed: list[int], count: int, dtype: str) -> Array:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if kind.kind in "iu":
        x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, count, dtype, endpoint=True)
        return np.where(rng.random(count) < 0.3, 0, x).astype(kind)
    x = rng.integers(-9, 10, count).astype(kind)  # exact for every order of summation
    return x + 1j * rng.integers(-9, 10, count).astype(x.real.dtype) if kind.kind == "c" else x


def _reduced(op: str, arrays: list[Array]) -> Array:
    dtype = arrays[0].dtype
    if op == "avg":
        return (functools.reduce(np.add, arrays) / len(arrays)).astype(dtype)
    return functools.reduce(lambda a, b: UFUNCS[op](a, b).astype(dtype), arrays)


def _check_case(comm: hk.Communicator, backend: str, op: Any, dtype: str, count: int) -> None:
    rank, size = comm.rank, comm.size
    given = [_values([count, each, len(op)], count * size, dtype) for each in range(size)]
    total = _reduced(op, given)
    # NumPy divides complex numbers by another formula.
    compare = partial(np.testing.assert_allclose, rtol=1e-6) if op == "avg" else np.testing.assert_array_equal

    x = given[rank].copy()
    comm.all_reduce(x, op, backend=backend)
    compare(x, total)
    x = given[rank].copy()
    comm.reduce(x, size - 1, op, backend=backend)
    compare(x, total if rank == size - 1 else given[rank])
    out = np.empty(count, dtype)
    comm.reduce_scatter(out, given[rank], op, backend=backend)
    compare(out, total[rank * count : (rank + 1) * count])
    if op != "avg":
        x = given[rank].copy()
        comm.scan(x, op, backend=backend, async_op=True).wait()
        compare(x, _reduced(op, given[: rank + 1]))


def _run(comm: hk.Communicator, backend: str) -> bool:
    limit_threads(backend)
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(60))
    for number, (op, dtype) in enumerate(CASES):
        for count in COUNTS if number % 8 == 0 else COUNTS[1:3]:
            _check_case(comm, backend, op, dtype, count)
    comm.finalize()
    return True


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 1), ("shm", 2), *with_most_ranks(WITH_COLLECTIVES, 3)])
def test_against_numpy(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_run, num_ranks, backend, timeout=100))


def _scan(comm: hk.Communicator, backend: str) -> bool:
    """scan of every second type, up to many chunks; 16-bit floats accumulate in 32 bits."""
    limit_threads(backend)
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(60))
    for dtype in ("float16", ml_dtypes.bfloat16, "float32", "float64", "int32"):
        for count in (0, 5, 3000, 1_500_001):
            given = [(np.arange(count) % (50 + rank)).astype(dtype) for rank in range(comm.size)]
            x = given[comm.rank].copy()
            comm.scan(x, backend=backend)
            wide = np.sum([each.astype(np.float64) for each in given[: comm.rank + 1]], axis=0)
            np.testing.assert_array_equal(x, wide.astype(dtype))
    comm.finalize()
    return True


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("backend", "num_ranks"), with_most_ranks(WITH_COLLECTIVES, 3))
def test_scan(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_scan, num_ranks, backend, timeout=100))


def _torch_tensors(comm: hk.Communicator) -> bool:
    torch = importlib.import_module("torch")
    x = torch.full((5,), 1 + 2j, dtype=torch.complex64) * (comm.rank + 1)
    comm.all_reduce(x)
    assert torch.equal(x, torch.full((5,), 3 + 6j, dtype=torch.complex64))
    y = torch.tensor([1, 2, 4], dtype=torch.uint16) if comm.rank else torch.tensor([8, 2, 1], dtype=torch.uint16)
    comm.all_reduce(y, "bor")
    assert y.tolist() == [9, 2, 5]
    with raises(hk.InvalidType, names="resolve_conj()"):
        comm.all_reduce(x.conj())
    comm.all_reduce(x.conj().resolve_conj())
    return True


def test_torch_tensors() -> None:
    assert all(hk.spawn(_torch_tensors, 2, timeout=50))
