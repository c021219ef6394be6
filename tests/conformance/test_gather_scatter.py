"""gather and scatter, compared with NumPy on every backend, at the sizes where the core changes its method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket import _native

from ..backends import WITH_COLLECTIVES, limit_threads, with_ranks
from ..load import scaled
from ..naming import assert_names

LIMITS = [_native.CONSTANTS[name] for name in ("inline_bytes", "eager_bytes", "least_direct_bytes")]
SIZES = [0, 8, *(each + step for each in LIMITS for step in (-8, 0, 8)), (1 << 20) + 8, (5 << 20) + 8]
DTYPES = ("float16", "float64", "uint8", "bool", "int32")


def _values(seed: int, nbytes: int, dtype: str) -> np.ndarray[Any, Any]:
    count = nbytes // np.dtype(dtype).itemsize
    return np.random.default_rng([seed, nbytes]).integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)


def _run(comm: hk.Communicator, backend: str) -> bool:
    limit_threads(backend)
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(60))
    rank, size = comm.rank, comm.size
    for turn, nbytes in enumerate(SIZES):
        dtype = DTYPES[turn % len(DTYPES)] if nbytes else "float32"
        root = turn % size
        own = _values(rank, nbytes, dtype)
        count = own.size
        everything = np.concatenate([_values(each, nbytes, dtype) for each in range(size)])
        mine = slice(rank * count, (rank + 1) * count)
        is_root = rank == root

        out = np.zeros(size * count, dtype) if is_root else None
        comm.gather(out, own, root, backend=backend)
        if out is not None:
            np.testing.assert_array_equal(out, everything)
            in_place = np.zeros(size * count, dtype)
            in_place[mine] = own
        work = comm.gather(in_place if is_root else None, in_place[mine] if is_root else own, root, backend=backend,
                           async_op=True)  # fmt: skip
        work.wait()
        if is_root:
            np.testing.assert_array_equal(in_place, everything)

        block = np.zeros(count, dtype)
        comm.scatter(block, everything if is_root else None, root, backend=backend)
        np.testing.assert_array_equal(block, own)
        if is_root:
            whole = everything.copy()
            comm.scatter(whole[mine], whole, root, backend=backend)
            np.testing.assert_array_equal(whole, everything)
        else:
            block.fill(0)
            comm.scatter(block, None, root, backend=backend)
            np.testing.assert_array_equal(block, own)
    comm.finalize()
    return True


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 1), *with_ranks(WITH_COLLECTIVES, least=2)])
def test_against_numpy(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_run, num_ranks, backend, timeout=100))


def _two_ways(comm: hk.Communicator) -> bool:
    """Operations use a copy of an array with gaps, and write it back."""
    x = (np.arange(3 * 40).reshape(3, 40) + comm.rank)[:, ::2]
    out = np.full((comm.size, 3, 40), -1)[:, :, ::2]
    comm.gather(out if comm.rank == 0 else None, x, 0)
    if comm.rank == 0:
        expected = [(np.arange(3 * 40).reshape(3, 40) + each)[:, ::2] for each in range(comm.size)]
        np.testing.assert_array_equal(out, np.stack(expected))
    block = np.zeros((3, 40), int)[:, ::2]
    comm.scatter(block, out if comm.rank == 0 else None, 0)
    np.testing.assert_array_equal(block, x)
    return True


def _wrong_calls(comm: hk.Communicator) -> list[tuple[str, str]]:
    x, blocks = np.ones(4), np.ones(4 * comm.size)
    is_root = comm.rank == 0
    calls = [
        lambda: comm.gather(None if is_root else blocks, x, 0),
        lambda: comm.scatter(x, None if is_root else blocks, 0),
        lambda: comm.gather(blocks, x, comm.size),
        lambda: comm.scatter(x, blocks, -1),
        lambda: comm.gather(blocks[1:] if is_root else blocks, x, 0),
        lambda: comm.scatter(x, blocks[1:] if is_root else x, 0),
        lambda: comm.gather(blocks.astype(np.float32) if is_root else 3, x, 0),
    ]
    seen = []
    for call in calls:
        with pytest.raises(hk.HocketError) as caught:
            call()
        seen.append((type(caught.value).__name__, str(caught.value)))
    comm.gather(blocks if is_root else None, x, 0)  # none of the ranks issued anything before
    return seen


def test_gaps() -> None:
    assert all(hk.spawn(_two_ways, 2, timeout=50))


def test_wrong_calls() -> None:
    root, other = hk.spawn(_wrong_calls, 2, timeout=50)
    assert {kind for kind, _ in root + other} == {"InvalidArgument"}
    for (_, of_root), (_, of_other), name in zip(root, other, ("out", "x"), strict=False):
        assert_names(of_root, "root", name)
        assert_names(of_other, "root", name)
        assert of_root != of_other


def _mismatch(comm: hk.Communicator) -> str:
    with pytest.raises(hk.CollectiveMismatch) as caught:
        comm.gather(np.ones(4) if comm.rank == 0 else None, np.ones(2 if comm.rank == 0 else 3), 0)
    comm.barrier()
    return str(caught.value)


def test_mismatch() -> None:
    for text in hk.spawn(_mismatch, 2, timeout=50):
        assert_names(text, "gather", "root 0", "16 bytes", "24 bytes")
