"""Waiting for all of several operations, for any of them, and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.sim import Link

from ..naming import raises

pytestmark = pytest.mark.timeout(60)


def _all_and_any(comm: hk.Communicator) -> list[int]:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out, total = np.full(4, comm.rank), np.zeros(4, int), np.ones(1000)
    hk.wait_all([comm.irecv(out, left), comm.isend(x, right), comm.all_reduce(total, async_op=True)], timeout=30)
    assert out.tolist() == [left] * 4 and total.tolist() == [comm.size] * 1000
    if comm.rank != 0:
        time.sleep(0.05 * comm.rank)
        comm.send(x, 0, tag=comm.rank)
        comm.barrier()
        return []
    buffers = {src: np.zeros(4, int) for src in range(1, comm.size)}
    works = {src: comm.irecv(buffers[src], src, tag=src) for src in buffers}
    order = []
    while works:
        sources = list(works)
        src = sources[hk.wait_any([works[each] for each in sources], timeout=30)]
        assert buffers[src].tolist() == [src] * 4
        order.append(src)
        del works[src]
    comm.barrier()
    return order


def test_all_and_any() -> None:
    found = hk.spawn(_all_and_any, 3, timeout=50)
    assert sorted(found[0]) == [1, 2]


def _too_late(comm: hk.Communicator) -> bool:
    x = np.zeros(1)
    if comm.rank == 0:
        works = [comm.irecv(x, 1, tag=1), comm.irecv(np.zeros(1), 1, tag=2)]
        with raises(hk.CommTimeout, names=()):
            hk.wait_any(works, timeout=0.05)
        with raises(hk.CommTimeout, names=()):
            hk.wait_all(works, timeout=0.05)
        comm.barrier()
        hk.wait_all(works[1:], timeout=30)
    else:
        comm.barrier()
        comm.send(x, 0, tag=1)
        comm.send(x, 0, tag=2)
    return True


def test_deadlines() -> None:
    assert all(hk.spawn(_too_late, 2, timeout=50))


def test_nothing_to_wait_for() -> None:
    hk.wait_all([])
    with raises(hk.InvalidArgument, names=("works",)):
        hk.wait_any([])


def test_what_is_no_operation_in_flight() -> None:
    with hk.init(backends="shm") as comm:
        done = comm.all_reduce(np.zeros(1), async_op=True)
        with raises(hk.InvalidType, names=("works[1]", "None", "async_op=True")):
            hk.wait_all([done, comm.all_reduce(np.zeros(1))])  # type: ignore[list-item]
        with raises(hk.InvalidType, names=("works[0]", "3")):
            hk.wait_any([3])  # type: ignore[list-item]


def test_clock() -> None:
    begin = hk.wtime()
    time.sleep(0.01)
    assert 0.01 <= hk.wtime() - begin < 5


def test_virtual_clock() -> None:
    def program(comm: Any) -> tuple[float, int]:
        begin = hk.wtime()
        comm.compute(2.5)
        x = np.zeros(1)
        works = [comm.isend(x, 1 - comm.rank), comm.irecv(np.zeros(1), 1 - comm.rank)]
        first = hk.wait_any(works)
        hk.wait_all(works)
        return round(hk.wtime() - begin, 1), first

    assert [seconds for seconds, _ in hk.simulate(program, 2, fabric=Link.of(2.0, 10.0)).results] == [2.5, 2.5]


def test_an_error_of_the_callers_own_generator_is_told_as_it_is() -> None:
    def works() -> Iterator[Any]:
        raise TypeError("of the generator")
        yield

    with pytest.raises(TypeError, match="generator"):
        hk.wait_all(works())
