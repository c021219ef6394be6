"""abort, synchronize and quiesce."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import Given, raises


def _abort(comm: hk.Communicator, backend: str) -> float:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    other = comm.dup()
    comm.barrier(backend=backend)
    begin = time.monotonic()
    if comm.rank == 1:
        pending = comm.irecv(np.zeros(3), 0)
        time.sleep(0.3)
        comm.abort("the data ran out")
        with raises(hk.Aborted, names=("rank 1", "world", Given("the data ran out"))):
            pending.wait()
        comm.abort("once more: the first reason stays")
    else:
        with raises(hk.Aborted, names=("rank 1", "world", Given("the data ran out"))):
            comm.all_reduce(np.zeros(70_000), backend=backend)
    for _ in range(2):
        with raises(hk.Aborted, names=Given("the data ran out")):
            comm.barrier()
        with raises(hk.Aborted, names=Given("the data ran out")):
            comm.synchronize()
    seconds = time.monotonic() - begin
    other.barrier()  # another communicator
    comm.finalize()
    return seconds


@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_abort(backend: str) -> None:
    assert max(hk.spawn(_abort, 3, backend, timeout=50)) < 10


def _synchronize(comm: hk.Communicator) -> bool:
    x = np.ones(1_000_000)
    works = [comm.all_reduce(x, async_op=True) for _ in range(4)]
    comm.synchronize()
    assert all(work.done for work in works) and (x == comm.size**4).all()
    comm.synchronize()  # nothing in flight
    if comm.rank == 0:
        late = comm.irecv(x, 1)
        with raises(hk.CommTimeout, names=("rank 0", "world", "0.1 s", "recv", "number 1")):
            comm.synchronize(timeout=0.1)
        comm.barrier()
        late.wait()
    else:
        comm.barrier()
        if comm.rank == 1:
            comm.send(x, 0)
    order = np.zeros(comm.size)
    work = comm.all_gather(order, np.ones(1), async_op=True)
    comm.quiesce()
    assert work.done and order.all()
    if comm.rank == 0:
        with raises(hk.CommTimeout, names=("barrier", "rank 1"), ranks=(1,)):
            comm.quiesce(timeout=0.2)
    else:
        time.sleep(1.5)
    return True


def test_synchronize_and_quiesce() -> None:
    assert all(hk.spawn(_synchronize, 2, timeout=50))


def _leave_after_abort(comm: hk.Communicator, num_times: int) -> None:
    for number in range(num_times):
        given_up = comm.dup()
        if comm.rank == 1:
            given_up.abort(f"reason {number}")
            given_up.finalize()
        else:
            wait = given_up.recv if number % 2 else given_up.all_reduce
            with raises(hk.Aborted, names=f"reason {number}"):
                wait(np.zeros(3), *((1,) if number % 2 else ()))


def test_who_gives_up_and_leaves_at_once_is_understood() -> None:
    hk.spawn(_leave_after_abort, 2, 200, timeout=50)
