"""Ranks that are bound to one processor, as by launchers of MPI and Slurm."""

from __future__ import annotations

import os

import numpy as np
import pytest

import hocket as hk

from ..load import scaled

pytestmark = pytest.mark.timeout(90)
COUNT = 40


@pytest.fixture(autouse=True)
def _start_with_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_BACKENDS", "shm")  # for spawn's own communicator, which the ranks finalize at once


def _exchange(comm: hk.Communicator, library: str, nbytes: int, bound: tuple[bool, bool]) -> list[int]:
    """Send numbers around, half of them before the ranks are bound or freed; return the received ones in order."""
    comm.finalize()
    comm = hk.init(backends=["shm", library], timeout=scaled(30))
    allowed = os.sched_getaffinity(0)
    own = {sorted(allowed)[comm.rank % len(allowed)]}
    received = np.full((COUNT, nbytes // 8), -1, np.int64)
    try:
        for half in range(2):
            os.sched_setaffinity(0, own if bound[half] else allowed)
            numbers = range(half * COUNT // 2, (half + 1) * COUNT // 2)
            sent = np.repeat(np.array(numbers), nbytes // 8).reshape(-1, nbytes // 8)
            works = [comm.irecv(received[number], (comm.rank - 1) % comm.size, backend=library) for number in numbers]
            works += [comm.isend(x, (comm.rank + 1) % comm.size, backend=library) for x in sent]
            for work in works:
                work.wait()
    finally:
        os.sched_setaffinity(0, allowed)
    comm.finalize()
    assert (received == received[:, :1]).all()
    return [int(number) for number in received[:, 0]]


@pytest.mark.parametrize("bound", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("nbytes", [8, 1 << 17])
@pytest.mark.parametrize("library", ["gloo", "mpi"])
def test_messages_come_in_order(library: str, nbytes: int, bound: tuple[bool, bool]) -> None:
    assert hk.spawn(_exchange, 2, library, nbytes, bound, timeout=60) == [list(range(COUNT))] * 2
