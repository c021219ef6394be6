"""Operations with dependencies: they begin when all dependencies are complete."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk

from ..load import scaled

pytestmark = pytest.mark.timeout(60)


def _sum_of_a_sum(comm: hk.Communicator, is_last: bool) -> list[float]:
    """The result of a slow operation is summed again; the other dependency, a quick one, completes long before."""
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi", "gloo"], timeout=scaled(30))
    found = []
    for number in range(1, 6):
        x = np.full(10, float(number))
        wait_for_rank_0(comm)
        quick = comm.all_reduce(np.ones(3), backend="mpi", async_op=True)
        if comm.rank == 1:
            quick.wait()
        wait_for_rank_0(comm)
        slow = comm.all_reduce(x, backend="gloo", async_op=True)
        work = comm.all_reduce(x, backend="shm", async_op=True, deps=[quick, slow] if is_last else [slow, quick])
        if comm.rank == 0:
            comm.send(np.ones(1), 1)
            quick.wait()
            assert not any(work.test() for _ in range(100))
            comm.send(np.ones(1), 1)
        work.wait()
        found.append(float(x.sum()))
    return found


def wait_for_rank_0(comm: hk.Communicator) -> None:
    """Wait, on rank 1, until rank 0 reports that it has issued everything."""
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)


@pytest.mark.parametrize("is_last", [True, False])
def test_all_have_to_be_over(is_last: bool) -> None:
    assert hk.spawn(_sum_of_a_sum, 2, is_last, timeout=40) == [[40.0 * number for number in range(1, 6)]] * 2
