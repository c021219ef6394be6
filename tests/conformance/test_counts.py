"""Operations with blocks of different sizes, compared with NumPy, over every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket import _native
from hocket.comm.policy import Policy

from ..backends import WITH_COLLECTIVES, limit_threads, with_ranks
from ..load import scaled
from ..naming import assert_names, raises
from ..tier import is_full

EAGER, DIRECT = _native.CONSTANTS["eager_bytes"], _native.CONSTANTS["least_direct_bytes"]
# The largest block of a case in bytes: sent with the line, staged in one piece and in many, read directly.
LARGEST = [0, 8, 40, EAGER - 8, EAGER + 8, DIRECT - 8, DIRECT + 8, (700 << 10) + 8, (3 << 20) + 8]
DTYPES = ("float64", "int32", "uint8", "float32")

Array = np.ndarray[Any, Any]


def _counts(seed: list[int], size: int, most: int) -> list[int]:
    """Draw the number of items of every rank's block: some are 0, and one is `most`."""
    rng = np.random.default_rng(seed)
    counts = [0 if rng.random() < 0.3 else int(rng.integers(0, most + 1)) for _ in range(size)]
    counts[rng.integers(size)] = most
    return counts


def _values(seed: list[int], count: int, dtype: str) -> Array:
    return np.random.default_rng(seed).integers(0, 60, count).astype(dtype)


def _slices(counts: list[int]) -> list[slice]:
    ends = np.cumsum([0, *counts])
    return [slice(ends[i], ends[i + 1]) for i in range(len(counts))]


def _check_case(comm: hk.Communicator, backend: str, turn: int, nbytes: int, is_async: bool) -> None:
    rank, size, dtype = comm.rank, comm.size, DTYPES[turn % len(DTYPES)]
    root = turn % size
    counts = _counts([turn, nbytes], size, nbytes // np.dtype(dtype).itemsize)
    total, mine = sum(counts), _slices(counts)[rank]
    blocks = [_values([turn, nbytes, each], counts[each], dtype) for each in range(size)]
    everything = np.concatenate(blocks)
    how: dict[str, Any] = {"backend": backend, "async_op": True} if is_async else {"backend": backend}

    def run(call: Any, *arguments: Any) -> None:
        work = call(*arguments, **how)
        if is_async:
            work.wait()

    out = np.zeros(total, dtype)
    run(comm.all_gatherv, out, blocks[rank], counts)
    np.testing.assert_array_equal(out, everything)
    in_place = np.zeros(total, dtype)
    in_place[mine] = blocks[rank]
    run(comm.all_gatherv, in_place, in_place[mine], counts)
    np.testing.assert_array_equal(in_place, everything)

    out = np.zeros(total, dtype)
    run(comm.gatherv, out if rank == root else None, blocks[rank], counts, root)
    np.testing.assert_array_equal(out, everything if rank == root else 0)
    in_place = np.zeros(total, dtype)
    in_place[mine] = blocks[rank]
    run(comm.gatherv, in_place if rank == root else None, in_place[mine], counts, root)
    if rank == root:
        np.testing.assert_array_equal(in_place, everything)

    block = np.zeros(counts[rank], dtype)
    run(comm.scatterv, block, everything if rank == root else None, counts, root)
    np.testing.assert_array_equal(block, blocks[rank])
    whole = everything.copy()
    run(comm.scatterv, whole[mine] if rank == root else block, whole if rank == root else None, counts, root)
    np.testing.assert_array_equal(whole, everything)

    given = [_values([turn, nbytes, each, 1], total, dtype) for each in range(size)]
    x, block = given[rank].copy(), np.zeros(counts[rank], dtype)
    run(comm.reduce_scatterv, block, x, counts)
    np.testing.assert_array_equal(block, np.sum(given, axis=0).astype(dtype)[mine])
    np.testing.assert_array_equal(x, given[rank])
    run(comm.reduce_scatterv, x[mine], x, counts, "max")
    np.testing.assert_array_equal(x[mine], np.max(given, axis=0)[mine])
    if dtype.startswith("float"):
        run(comm.reduce_scatterv, block, given[rank], counts, "avg")
        np.testing.assert_allclose(block, np.mean(given, axis=0)[mine])

    matrix = [_counts([turn, nbytes, 2, each], size, nbytes // np.dtype(dtype).itemsize) for each in range(size)]
    sent = [_values([turn, nbytes, each, 3], sum(matrix[each]), dtype) for each in range(size)]
    received_counts = [matrix[each][rank] for each in range(size)]
    out = np.zeros(sum(received_counts), dtype)
    run(comm.all_to_allv, out, sent[rank], received_counts, matrix[rank])
    expected = np.concatenate([sent[each][_slices(matrix[each])[rank]] for each in range(size)])
    np.testing.assert_array_equal(out, expected)


def _run(comm: hk.Communicator, backend: str) -> bool:
    limit_threads(backend)
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(60))
    for turn, nbytes in enumerate(LARGEST):
        for is_async in (False, True) if is_full() else (turn % 2 == 1,):
            _check_case(comm, backend, turn, nbytes, is_async)
    comm.finalize()
    return True


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("backend", "num_ranks"), with_ranks(WITH_COLLECTIVES))
def test_against_numpy(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_run, num_ranks, backend, timeout=120))


def _without_single_copy(comm: hk.Communicator) -> bool:
    for turn, nbytes in enumerate(LARGEST):
        _check_case(comm, "shm", turn, nbytes, False)
    return not _native.has_single_copy()


@pytest.mark.timeout(90)
def test_staged_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SINGLE_COPY", "0")
    assert all(hk.spawn(_without_single_copy, 3, timeout=80))


def _gaps(comm: hk.Communicator) -> bool:
    """Operations use a copy of an array with gaps, and write it back."""
    counts = [3, 5]
    x = np.arange(16)[::2][: counts[comm.rank]] + 100 * comm.rank
    out = np.zeros(16, int)[::2]
    comm.all_gatherv(out, x, np.array(counts))
    np.testing.assert_array_equal(out, [0, 2, 4, 100, 102, 104, 106, 108])
    sends, receives = ([1, 2], [1, 3]) if comm.rank == 0 else ([3, 1], [2, 1])
    x = np.arange(8)[::2][: sum(sends)] + 100 * comm.rank
    received = np.zeros(2 * sum(receives), int)[::2]
    comm.all_to_allv(received, x, receives, sends)
    np.testing.assert_array_equal(received, [0, 100, 102, 104] if comm.rank == 0 else [2, 4, 106])
    return True


def test_gaps() -> None:
    assert all(hk.spawn(_gaps, 2, timeout=50))


def _mismatch(comm: hk.Communicator, backend: str) -> list[str]:
    """Sender and receiver pass different sizes, in one pair of ranks only."""
    if backend != "shm":
        comm.finalize()
        comm = hk.init(backends=["shm", backend], timeout=20)
    texts = []
    for items in (3, 30_000):
        in_counts = [items] * comm.size
        out_counts = [items] * comm.size
        if comm.rank == 1:
            out_counts[0] += 1
        x, out = np.ones(sum(in_counts)), np.ones(sum(out_counts))
        with pytest.raises(hk.CollectiveMismatch) as caught:
            comm.all_to_allv(out, x, out_counts, in_counts, backend=backend)
        texts.append(str(caught.value))
        counts = [items + (comm.rank == 2)] * comm.size
        with pytest.raises(hk.CollectiveMismatch) as caught:
            comm.all_gatherv(np.ones(sum(counts)), np.ones(counts[0]), counts, backend=backend)
        texts.append(str(caught.value))
        good = np.zeros(sum(in_counts))
        comm.all_to_allv(good, x, in_counts, in_counts, backend=backend)
        assert good.all()
    comm.finalize()
    return texts


@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_mismatch(backend: str) -> None:
    for texts in hk.spawn(_mismatch, 3, backend, timeout=50):
        assert_names(texts[0], "rank 1", "all_to_allv", "72 bytes", "float64", "3, 3, 3", "4, 3, 3", "ranks 0 and 2")
        assert_names(texts[1], "rank 2", "all_gatherv", "96 bytes", "float64", "4, 4, 4")
        assert_names(texts[2], "all_to_allv", "30001, 30000, 30000")
        assert_names(texts[3], "all_gatherv", "30001, 30001, 30001")


def _wrong_calls(comm: hk.Communicator) -> list[str]:
    x, n = np.ones(4), comm.size
    calls = [
        lambda: comm.all_gatherv(np.ones(8), x, 4),
        lambda: comm.all_gatherv(np.ones(8), x, [4]),
        lambda: comm.all_gatherv(np.ones(8), x, [4, 4.0]),
        lambda: comm.all_gatherv(np.ones(8), x, [4, -4]),
        lambda: comm.all_gatherv(np.ones(8), x, [4, 5]),
        lambda: comm.all_gatherv(np.ones(6), x, [3, 3]),
        lambda: comm.reduce_scatterv(np.ones(3), np.ones(8), [4, 4]),
        lambda: comm.reduce_scatterv(np.ones(4), np.ones(9), [4, 4]),
        lambda: comm.reduce_scatterv(np.ones(4, bool), np.ones(8, bool), [4, 4], "sum"),
        lambda: comm.all_to_allv(np.ones(8), np.ones(7), [4, 4], [4, 4]),
        lambda: comm.all_to_allv(np.ones(7), np.ones(8), [4, 4], [4, 4]),
        lambda: comm.all_to_allv(np.ones(3), np.ones(4), [2, 1][:: 1 - 2 * comm.rank], [1, 3][:: 1 - 2 * comm.rank]),
        lambda: comm.gatherv(None if comm.rank == 0 else x, x, [4, 4], 0),
        lambda: comm.scatterv(x, None if comm.rank == 0 else x, [4, 4], 0),
        lambda: comm.gatherv(None, x, [4, 4], n),
        lambda: comm.all_gatherv(np.ones(8), x, [1 << 62, 1 << 62]),
        lambda: comm.all_gatherv(np.ones(8), np.ones(4, "f4"), [4, 4]),
    ]  # fmt: skip
    seen = []
    for call in calls:
        with pytest.raises(hk.HocketError) as caught:
            call()
        seen.append(f"{type(caught.value).__name__}: {caught.value}")
    y = np.arange(8.0)
    with raises(hk.InvalidArgument, names="overlap"):
        comm.all_gatherv(y, y[1:5], [4, 4])
    with raises(hk.InvalidArgument, names="overlap"):
        comm.all_to_allv(y, y, [4, 4], [4, 4])
    comm.barrier()  # none of the ranks issued anything before
    return seen


def test_wrong_calls() -> None:
    for seen in hk.spawn(_wrong_calls, 2, timeout=50):
        for text, names in zip(
            seen,
            [
                ("InvalidType", "counts", "2", "int"),
                ("InvalidArgument", "counts", "2", "1"),
                ("InvalidType", "counts", "2", "1", "4.0"),
                ("InvalidArgument", "counts", "1", "-4"),
                ("InvalidArgument", "all_gatherv", "out", "8", "counts", "9"),
                ("InvalidArgument", "all_gatherv", "x", "4", "counts", "3"),
                ("InvalidArgument", "reduce_scatterv", "out", "3", "counts", "4"),
                ("InvalidArgument", "reduce_scatterv", "x", "9", "counts", "8"),
                ("UnsupportedDtype", "sum", "bool"),
                ("InvalidArgument", "all_to_allv", "x", "7", "in_counts", "8"),
                ("InvalidArgument", "all_to_allv", "out", "7", "out_counts", "8"),
                ("InvalidArgument", "all_to_allv", "in_counts", "out_counts"),
                ("InvalidArgument", "gatherv"),
                ("InvalidArgument", "scatterv"),
                ("InvalidArgument", "root", "2"),
                ("InvalidArgument", "2^64 bytes"),
                ("InvalidArgument", "out", "float64", "x", "float32"),
            ],
            strict=True,
        ):
            assert_names(text, *names)


def _choices(comm: hk.Communicator) -> list[str]:
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(30))
    comm.policy = Policy.fixed({"all_to_allv": "mpi", "all_gatherv": "mpi", "*": "shm"})
    counts = [2, 40_000]
    sends = [1, 2] if comm.rank == 0 else [50_000, 3]  # different sizes on every rank (rule R8)
    receives = [1, 50_000] if comm.rank == 0 else [2, 3]
    comm.all_to_allv(np.zeros(sum(receives)), np.zeros(sum(sends)), receives, sends)
    comm.all_gatherv(np.zeros(sum(counts)), np.zeros(counts[comm.rank]), counts)
    comm.reduce_scatterv(np.zeros(counts[comm.rank]), np.zeros(sum(counts)), counts)
    records = comm.records()[-3:]
    assert [record.nbytes for record in records] == [8 * sum(sends), 8 * sum(counts), 8 * sum(counts)]
    explained = [comm.explain(record.op, record.nbytes, record.dtype).chosen for record in records]
    comm.finalize()
    assert explained == [record.backend for record in records]
    return explained


def test_choice() -> None:
    assert hk.spawn(_choices, 2, timeout=50) == [["mpi", "mpi", "shm"]] * 2
