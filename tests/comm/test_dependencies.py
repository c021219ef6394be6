"""Operations that wait for others: they begin when all of them are over."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk

pytestmark = pytest.mark.timeout(60)


def _sum_of_a_sum(comm: hk.Communicator, is_last: bool) -> list[float]:
    """Over one library what comes of another, which rank 1 joins late, when rank 0 has issued both."""
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=30)
    found = []
    for number in range(1, 6):
        x = np.full(10, float(number))
        over = comm.all_reduce(np.ones(3), backend="shm", async_op=True)
        over.wait()
        if comm.rank == 1:
            comm.recv(np.empty(1), 0)
        slow = comm.all_reduce(x, backend="mpi", async_op=True)
        work = comm.all_reduce(x, backend="shm", async_op=True, deps=[over, slow] if is_last else [slow, over])
        if comm.rank == 0:
            assert not any(work.test() for _ in range(100))
            comm.send(np.ones(1), 1)
        work.wait()
        found.append(float(x.sum()))
    return found


@pytest.mark.parametrize("is_last", [True, False])
def test_all_have_to_be_over(is_last: bool) -> None:
    assert hk.spawn(_sum_of_a_sum, 2, is_last, timeout=40) == [[40.0 * number for number in range(1, 6)]] * 2
