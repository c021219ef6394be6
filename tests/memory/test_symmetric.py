"""Arrays in shared memory: how they are made, how long they live, and which ones are refused."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..naming import raises


def _made(comm: hk.Communicator) -> bool:
    host = comm._fabric.host
    x = comm.empty((3, 5), "int64")
    assert x.shape == (3, 5) and x.dtype == np.int64 and x.flags.writeable and x.flags.c_contiguous
    assert comm.zeros(7).dtype == np.float32 and comm.empty(()).shape == ()
    assert comm.empty((0, 3)).shape == (0, 3)
    assert comm.empty(np.int64(4), np.dtype("float16")).shape == (4,)
    big = comm.empty(1 << 20)
    before = host.num_allocated
    assert before >= big.nbytes
    view = big[100:200].reshape(10, 10)
    del big
    gc.collect()
    assert host.num_allocated == before  # a view keeps it
    view[...] = 3
    del view
    gc.collect()
    assert host.num_allocated <= before - (4 << 20)
    assert (comm.empty(1 << 20) == 3).any()  # the same memory
    assert not comm.zeros(1 << 20).any()
    like = comm.symmetric_like(np.arange(6.0).reshape(2, 3)[:, ::-1])
    np.testing.assert_array_equal(like, [[2, 1, 0], [5, 4, 3]])
    return True


def _rejected(comm: hk.Communicator) -> bool:
    with raises(hk.InvalidArgument, names=("shape", "(3, -1)")):
        comm.empty((3, -1))
    with raises(hk.InvalidType, names=("shape", "'ab'")):
        comm.empty("ab")
    with raises(hk.InvalidType, names=("dtype", "'float32'", "'nonsense'")):
        comm.empty(3, "nonsense")
    with raises(hk.InvalidArgument, names=("str160", "float32")):
        comm.empty(3, "U5")
    with raises(hk.InvalidType, names=("symmetric_like", "list")):
        comm.symmetric_like([1, 2])
    with raises(hk.ResourceExhausted, names=str(1 << 45)):
        comm.empty(1 << 45, "uint8")
    comm.finalize()
    with raises(hk.InvalidState, names=("world", "finalized")):
        comm.empty(3)
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fn", [_made, _rejected])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_on_ranks(fn: Any, num_ranks: int) -> None:
    assert all(hk.spawn(fn, num_ranks, timeout=50))


def _outlives(comm: hk.Communicator) -> bool:
    """An array is used after the end of its communicator and job, and in the next job, where it is plain memory."""
    x = comm.empty(50_000)
    x[...] = comm.rank
    comm.all_reduce(x)
    comm.finalize()
    gc.collect()
    assert (x == 1).all()
    x += 1
    second = hk.init(backends=["shm"], timeout=30)
    second.all_reduce(x)
    assert (x == 4).all() and not second.records()[-1].in_place
    y = second.empty(50_000)
    for _ in range(2):
        y[...] = second.rank
        second.all_reduce(y)
    assert (y == 1).all() and second.records()[-1].in_place
    second.finalize()
    del comm, second
    gc.collect()
    y += x
    assert (y == 5).all()
    return True


@pytest.mark.timeout(60)
def test_arrays_outlive_their_communicator() -> None:
    assert all(hk.spawn(_outlives, 2, timeout=50))


def _after_fork(comm: hk.Communicator) -> bool:
    """A forked child can read the array, and dropping its reference does not affect the parent."""
    x = comm.empty(100_000)
    x[...] = 7
    pid = os.fork()
    if pid == 0:
        is_right = bool((x == 7).all())
        try:
            comm.empty(3)
        except hk.InvalidState:
            del x
            gc.collect()
            os._exit(0 if is_right else 1)
        os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (x == 7).all()
    comm.all_reduce(x)
    assert (x == 7 * comm.size).all()
    return True


@pytest.mark.timeout(60)
def test_a_forked_child() -> None:
    assert all(hk.spawn(_after_fork, 2, timeout=50))


def _after_failure(comm: hk.Communicator) -> bool:
    """The array of a given-up operation keeps its content, and other ranks can no longer write to it."""
    if comm.rank == 0:
        x = comm.empty(1 << 20)
        x[...] = 1
        with pytest.raises(hk.HocketError):
            comm.all_reduce(x, timeout=0.5)
        x[...] = 2
        return bool((x == 2).all())
    comm.all_reduce(comm.empty(1 << 18))  # another size: a mismatch, on both
    return True


@pytest.mark.timeout(60)
def test_a_mismatch_of_shared_arrays() -> None:
    with pytest.raises(hk.CollectiveMismatch):
        hk.spawn(_after_failure, 2, timeout=50)


def _module(comm: hk.Communicator) -> bool:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(comm.rank)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 300))
    model[2].weight = torch.nn.Parameter(model[0].weight.data.T)  # a view of the same memory
    before = [each.detach().clone() for each in model.state_dict().values()]
    model(torch.ones(4, 300)).sum().backward()
    assert comm.symmetric_like(model) is model
    assert all(torch.equal(was, now) or "running" in name or "num_batches" in name
               for was, (name, now) in zip(before, model.state_dict().items(), strict=True))  # fmt: skip
    assert model[2].weight.untyped_storage().data_ptr() == model[0].weight.untyped_storage().data_ptr()
    for _ in range(2):
        with torch.no_grad():
            comm.broadcast(model[0].weight, 0)
        comm.all_reduce(model[0].weight.grad)
    used = [each.in_place for each in comm.records() if each.op in ("broadcast", "all_reduce")]
    assert used[2:] == [True, True], used
    tensor = comm.empty((100, 50), torch.bfloat16)
    assert tensor.shape == (100, 50) and tensor.dtype == torch.bfloat16
    assert comm.empty((0, 4), torch.float32).shape == (0, 4)
    tensor.fill_(comm.rank + 1)
    comm.all_reduce(tensor)
    assert (tensor == 3).all() and comm.records()[-1].in_place
    like = comm.symmetric_like(torch.arange(5.0, requires_grad=True))
    assert torch.equal(like, torch.arange(5.0)) and not like.requires_grad
    with raises(hk.InvalidType, names=("CPU", "meta")):
        comm.symmetric_like(torch.nn.Linear(2, 2, device="meta"))
    return True


@pytest.mark.timeout(90)
def test_torch_modules_and_tensors() -> None:
    assert all(hk.spawn(_module, 2, timeout=80))
