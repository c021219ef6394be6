"""NCCL itself. Two ranks of one GPU it refuses, unless each says that it is on a host of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hocket as hk
from hocket.errors import BackendUnavailable

from ..memory import on_device
from ..naming import raises
from . import gpu_arrays
from .gpu_arrays import Torch

pytestmark = pytest.mark.timeout(150)
for each in (gpu_arrays, on_device):  # ranks cannot import what lies among the tests
    cloudpickle.register_pickle_by_value(each)
REFUSED = {"scan", "reduce_scatterv"}
REFUSED_FLOATS = {"max"}


def start(comm: hk.Communicator) -> hk.Communicator:
    """Let the ranks of a host pass for hosts of their own, to NCCL and to hocket's look at GPUs."""
    from hocket.backends import nccl

    rank, own_gpu = comm.rank, nccl.own_gpu
    comm.finalize()
    os.environ |= {"NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    nccl.own_gpu = lambda: own_gpu()._replace(name=f"GPU of rank {rank}")
    return hk.init(backends=["shm", "nccl"], timeout=60)


def _collectives(comm: hk.Communicator) -> dict[tuple[str, str], str]:
    comm = start(comm)
    assert "NCCL" in comm.backends["nccl"]
    seen: dict[tuple[str, str], str] = {}

    def watch(name: str, call: Callable[[], object]) -> None:
        call()
        seen[name, dtype] = comm.records()[-1].backend

    for dtype in ("float32", "float64", "int8", "int32", "int64", "uint8"):
        on_device.check_collectives(comm, Torch(), 4099, dtype, watch)
    dtype = "float16"
    on_device.check_collectives(comm, Torch(), 1003, dtype, watch)
    on_device.check_collectives(comm, Torch(), 3, "float32")
    import torch

    for count in (1, 1_000_003):
        y = torch.full((count,), comm.rank + 0.5, dtype=torch.bfloat16, device="cuda")
        comm.all_reduce(y, backend="nccl")
        assert y.eq(2.0).all()
    sub = comm.dup()
    x = torch.ones(20, device="cuda")
    sub.all_reduce(x, backend="nccl")
    assert x.eq(comm.size).all()
    sub.finalize()
    works = [comm.all_reduce(x, async_op=True) for _ in range(10)]
    for work in works:
        work.wait()
    assert x.eq(comm.size**11).all()
    comm.finalize()
    return seen


def test_collectives() -> None:
    for seen in hk.spawn(_collectives, 2, timeout=140):
        for (name, dtype), backend in seen.items():
            by_shm = name in REFUSED or (name in REFUSED_FLOATS and dtype.startswith("float"))
            assert backend == ("shm" if by_shm else "nccl"), (name, dtype)


def _alone() -> None:
    import torch

    comm = hk.init(backends=["shm", "nccl"], timeout=60)
    x = torch.full((5000,), 3.0, device="cuda")
    comm.all_reduce(x, backend="nccl")
    assert x.eq(3.0).all()
    comm.finalize()


def test_one_rank_alone() -> None:
    _alone()


def _one_gpu(comm: hk.Communicator) -> None:
    comm.finalize()
    with raises(BackendUnavailable, names=("ranks 0 and 1", "torch.cuda.set_device(local_rank)")):
        hk.init(backends=["shm", "nccl"], timeout=60)


def test_one_gpu_for_two_ranks() -> None:
    hk.spawn(_one_gpu, 2, timeout=100)


def _stuck(comm: hk.Communicator) -> None:
    import torch

    world = start(comm)
    x = torch.ones(5000, device="cuda")
    world.all_reduce(x, backend="nccl")
    if comm.rank == 0:
        with raises(hk.CommTimeout, names=("rank 1",), ranks=(1,)):
            world.all_reduce(x, backend="nccl", timeout=1.0)
    else:
        time.sleep(3)
    torch.cuda.synchronize()
    assert x.sum().item() == 10000


def test_one_that_does_not_come() -> None:
    hk.spawn(_stuck, 2, timeout=100)


def _killed(comm: hk.Communicator) -> None:
    """One dies while NCCL's kernels run: the other's are aborted, and its GPU is of use to it."""
    import torch

    world = start(comm)
    x: Any = torch.ones(50_000_000, device="cuda")
    world.all_reduce(x, backend="nccl")
    if world.rank == 1:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    begun = time.monotonic()

    def go_on() -> None:
        while time.monotonic() - begun < 30:
            world.all_reduce(x, backend="nccl")

    with pytest.raises(hk.PeerFailure) as raised:
        go_on()
    assert raised.value.ranks == (1,) and time.monotonic() - begun < 15
    y = torch.arange(1000, device="cuda").sum().item()
    assert y == 499500
    rest = world.shrink()
    z = np.ones(4)
    rest.all_reduce(z)
    assert z[0] == 1


def test_a_rank_that_is_killed_in_the_middle() -> None:
    with raises(hk.RemoteError, names=("rank 1", "SIGKILL")):
        hk.spawn(_killed, 2, timeout=100)
