"""Coalesced, fused and prepared operations give the same results as plain ones."""

from __future__ import annotations

import gc
import importlib
import random
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..backends import WITH_COLLECTIVES
from ..load import scaled
from ..naming import raises

SHAPES = [(3,), (0,), (7, 5), (1,), (2000,), (64, 64), (5,)]


def _given(rank: int, dtype: str, turn: int = 0) -> list[np.ndarray[Any, Any]]:
    return [np.full(shape, i + 10 * rank + turn, dtype) for i, shape in enumerate(SHAPES)]


def _check_sums(xs: list[Any], size: int, turn: int = 0) -> None:
    for i, x in enumerate(xs):
        np.testing.assert_array_equal(x, size * (i + turn) + 10 * sum(range(size)))


def _coalesced(comm: hk.Communicator, backend: str) -> bool:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    torch = importlib.import_module("torch")
    xs: list[Any] = _given(comm.rank, "float32")
    xs[3] = torch.full((4,), 3.0 + 10 * comm.rank)
    xs[4] = np.full((2000, 2), 4 + 10 * comm.rank, np.float32)[:, 0]  # with gaps
    comm.all_reduce_coalesced(xs, backend=backend)
    _check_sums(xs, comm.size)
    assert xs[3]._version == 1
    ys = _given(comm.rank, "int64")
    work = comm.all_reduce_coalesced(ys, "max", backend=backend, async_op=True)
    comm.all_reduce(ys[2], "sum", backend="shm", async_op=True).wait()  # follows it: the same bytes
    work.wait()
    np.testing.assert_array_equal(ys[2], comm.size * (2 + 10 * (comm.size - 1)))
    zs = _given(comm.rank, "uint8")
    comm.broadcast_coalesced(zs, 1, backend=backend)
    assert all((z == i + 10).all() for i, z in enumerate(zs))
    with comm.coalesced():
        a, b = np.full(5, comm.rank), np.full(100_000, 2.0)
        assert comm.all_reduce(a, backend=backend) is None  # type: ignore[func-returns-value]
        comm.all_reduce(b, backend=backend)
        comm.barrier()
        assert comm.all_gather_object(comm.rank, backend=backend) == list(range(comm.size))
        pair = comm.dup()
    pair.barrier()
    assert (a == sum(range(comm.size))).all() and (b == 2 * comm.size).all()
    comm.finalize()
    return True


@pytest.mark.parametrize("backend", WITH_COLLECTIVES)
def test_coalesced(backend: str) -> None:
    assert all(hk.spawn(_coalesced, 2, backend, timeout=50))


def _reduce_badly(comm: hk.Communicator, x: Any) -> None:
    with comm.coalesced():
        comm.all_reduce(x)
        comm.all_reduce(x, "no such")  # type: ignore[call-overload]


def _wrong_coalesced(comm: hk.Communicator) -> bool:
    x = np.ones(8)
    with raises(hk.InvalidArgument, names=("xs", "0", "float64", "1", "float32")):
        comm.all_reduce_coalesced([x, np.ones(3, np.float32)])
    with raises(hk.InvalidArgument, names=("xs", "overlap")):
        comm.all_reduce_coalesced([x[:5], x[4:]])
    with raises(hk.InvalidArgument, names="xs"):
        comm.all_reduce_coalesced([])
    with raises(hk.InvalidType, names=("xs", "numpy.ndarray")):
        comm.all_reduce_coalesced(x)  # type: ignore[call-overload]
    with raises(hk.InvalidType, names=("xs[1]", "int")):
        comm.all_reduce_coalesced([x, 3])
    with raises(hk.InvalidArgument, names=("op", "'sum'", repr("no such"))):
        _reduce_badly(comm, x)
    with comm.coalesced():
        with raises(hk.InvalidState, names="coalesced()"):
            comm.coalesced().__enter__()
        comm.all_reduce(x)
    comm.barrier()
    assert (x == comm.size**2).all()
    return True


def test_wrong_coalesced() -> None:
    assert all(hk.spawn(_wrong_coalesced, 2, timeout=50))


def _fuse_badly(comm: hk.Communicator) -> None:
    with comm.fused() as fused:
        fused.all_reduce(np.ones(3))
        raise ZeroDivisionError


def _fused(comm: hk.Communicator) -> bool:
    for max_nbytes in (1, 100, 1 << 20):
        floats, ints = _given(comm.rank, "float32"), _given(comm.rank, "int32")
        before = len(comm.records())
        with comm.fused(max_nbytes=max_nbytes) as fused:
            for x, y in zip(floats, ints, strict=True):
                fused.all_reduce(x)
                fused.all_reduce(y)
        _check_sums(floats, comm.size)
        _check_sums(ints, comm.size)
        assert len(comm.records()) - before == {1: 14, 100: 12, 1 << 20: 2}[max_nbytes]
    with pytest.raises(ZeroDivisionError):
        _fuse_badly(comm)
    with raises(hk.InvalidArgument, names=("max_nbytes", "1", "0")):
        comm.fused(max_nbytes=0)
    with comm.fused() as fused, raises(hk.InvalidType, names=("x", "int")):
        fused.all_reduce(3)
    comm.barrier()
    return True


def test_fused() -> None:
    assert all(hk.spawn(_fused, 2, timeout=50))


def _bucket(comm: hk.Communicator, seed: int) -> bool:
    """Every rank computes and waits at different times and in a different order."""
    own = random.Random(f"{seed} {comm.rank}")
    everything: list[Any] = []
    with comm.bucket(max_nbytes=own.choice([500, 20_000]), max_seconds=own.choice([0.0005, 0.01, 0.05])) as bucket:
        pending: list[tuple[Any, Any, int]] = []
        for turn in range(40):
            for x in _given(comm.rank, "float64" if turn % 3 else "int32", turn):
                pending.append((bucket.all_reduce(x), x, turn))
                everything.append(x)
            comm.all_reduce(np.ones(3))  # the bucket has its own issue order
            if own.random() < 0.2:
                time.sleep(own.random() * 0.005)
            while pending and own.random() < 0.3:
                pending.pop(own.randrange(len(pending)))[0].wait()
        bucket.flush()
        assert all(each[0].done and each[0].exception() is None for each in pending)
    for turn in range(40):
        _check_sums(everything[turn * len(SHAPES) : (turn + 1) * len(SHAPES)], comm.size, turn)
    with raises(hk.InvalidState, names="bucket"):
        bucket.all_reduce(np.ones(2))
    comm.barrier()
    return True


@pytest.mark.parametrize("seed", range(3))
def test_bucket(seed: int) -> None:
    assert all(hk.spawn(_bucket, 3, seed, timeout=50))


def _bucket_sums(comm: hk.Communicator) -> bool:
    bucket = comm.bucket(max_seconds=0.01)
    xs = _given(comm.rank, "float32")
    handles = [bucket.all_reduce(x) for x in xs]
    begin = time.monotonic()
    while not all(handle.done for handle in handles):  # without a wait, the time limit sends them
        assert time.monotonic() - begin < 20
        time.sleep(0.001)
    _check_sums(xs, comm.size)
    bad = bucket.all_reduce(np.ones(3, bool))
    with raises(hk.UnsupportedDtype, names=("bool", "sum", "min")):
        bad.wait()
    bucket.all_reduce(xs[0]).wait()
    bucket.close()
    bucket.close()
    return True


def test_bucket_by_time() -> None:
    assert all(hk.spawn(_bucket_sums, 2, timeout=50))


def _dying(comm: hk.Communicator) -> bool:
    bucket = comm.bucket(max_seconds=0.01)
    if comm.rank == 1:
        bucket._leave()
        return True
    handle = bucket.all_reduce(np.ones(3))
    with pytest.raises((hk.PeerFailure, hk.Aborted)):
        handle.wait()
    bucket._leave()
    return True


def test_bucket_of_a_member_that_left() -> None:
    assert all(hk.spawn(_dying, 2, timeout=50))


def _prepared(comm: hk.Communicator, backend: str) -> bool:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    torch = importlib.import_module("torch")
    for x in (np.zeros(4, np.float32), np.zeros((60, 60))[:, ::3], torch.zeros(50_000)):
        operation = comm.prepare("all_reduce", x, "max", backend=backend)
        for turn in range(1, 4):
            x[...] = turn * (comm.rank + 1)
            if turn == 2:
                operation.start()
                with raises(hk.InvalidState, names=("all_reduce(max)", "wait()")):
                    operation.start()
                while not operation.test():
                    pass
            else:
                operation()
            assert (x == turn * comm.size).all()
    assert x._version >= 3
    own, out = np.full(comm.rank + 1, comm.rank), np.zeros(3, int)
    gather = comm.prepare("all_gatherv", out, own, [1, 2], backend=backend)
    gather.start()
    gather.wait(timeout=20)
    assert out.tolist() == [0, 1, 1]
    with raises(hk.InvalidState, names=("all_gatherv", "24 bytes")):
        gather.wait()
    with raises(hk.InvalidType, names="prepare()"):
        gather(3)  # type: ignore[call-arg]
    for wrong in ({"async_op": True}, {"deps": [comm.barrier(async_op=True)]}):
        with raises(hk.InvalidArgument, names=("prepare()", "async_op", "deps")):
            comm.prepare("barrier", **wrong)
    with raises(hk.InvalidArgument, names=("'split'", "barrier")):
        comm.prepare("split", 0)
    message = comm.prepare("send" if comm.rank == 0 else "recv", own := np.full(3, comm.rank), 1 - comm.rank)
    message()
    assert (own == 0).all()
    comm.barrier()
    comm.finalize()
    with pytest.raises(hk.InvalidState):
        gather()
    return True


@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_prepared(backend: str) -> None:
    assert all(hk.spawn(_prepared, 2, backend, timeout=50))


def _kept(comm: hk.Communicator) -> bool:
    """The array lives as long as the prepared operation, and no longer."""
    x = np.ones(100_000)
    seen = weakref.ref(x)
    operation = comm.prepare("all_reduce", x)
    operation.start()
    del x
    gc.collect()
    assert seen() is not None
    operation.wait()
    del operation
    comm.barrier()
    comm.all_reduce(np.ones(100_000))
    gc.collect()
    return seen() is None


def test_kept() -> None:
    assert all(hk.spawn(_kept, 2, timeout=50))


def _bucket_of_unlike_arrays(comm: hk.Communicator) -> bool:
    with comm.bucket(max_seconds=0.01) as bucket:
        unlike = bucket.all_reduce(np.ones(3 + comm.rank))
        with pytest.raises(hk.CollectiveMismatch):
            unlike.wait(timeout=20)
        assert unlike.done and isinstance(unlike.exception(), hk.CollectiveMismatch)
        alike = np.ones(3)
        bucket.all_reduce(alike).wait(timeout=20)
        assert (alike == comm.size).all()
    return True


def test_what_fails_on_its_way_fails_in_the_bucket() -> None:
    assert all(hk.spawn(_bucket_of_unlike_arrays, 2, timeout=50))
