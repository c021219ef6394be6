"""Threads: two in one communicator are an error, but any thread may wait for a Work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hocket as hk
from hocket.errors import InvalidArgument, InvalidState

from ..naming import assert_names
from .bad_calls import attempt, works


def _run_two_inside(comm: hk.Communicator) -> list[str]:
    signal = comm.dup()
    if comm.rank == 1:
        signal.barrier()  # rank 0 has finished its checks
        comm.send(np.ones(3), 0)
        works(comm)
        return []
    x, errors = np.zeros(3), []
    receiver = threading.Thread(target=lambda: comm.recv(x, 1))
    receiver.start()
    # The call fails because of its arguments, until it fails because of the thread that is inside.
    while isinstance(error := attempt(lambda: comm.send(x, 99)), InvalidArgument):
        pass
    errors.append(error)
    errors += [attempt(lambda: comm.all_reduce(np.zeros(2))), attempt(comm.barrier), attempt(lambda: comm.irecv(x, 1))]
    errors.append(attempt(lambda: comm.split(0)))
    signal.barrier()  # another communicator can be used
    receiver.join()
    assert x.tolist() == [1, 1, 1]
    works(comm)
    return [f"{type(error).__name__}: {error}" for error in errors]


@pytest.mark.timeout(40)
def test_two_threads_in_one_communicator() -> None:
    errors, _ = hk.spawn(_run_two_inside, 2, timeout=30)
    assert len(errors) == 5
    for text in errors:
        assert text.startswith(InvalidState.__name__), text
        assert_names(text, "world", "comm.dup()")
        assert "\n" not in text


def _run_waits(comm: hk.Communicator) -> int:
    """Several threads wait for works of one communicator, also for the same work, while the main thread issues."""
    done = 0
    with ThreadPoolExecutor(6) as pool:
        for turn in range(40):
            arrays = [np.full(count, comm.rank + 1.0) for count in (1, 2_000, 200_000)]
            pending = [comm.all_reduce(x, async_op=True) for x in arrays]
            waits = [pool.submit(work.wait) for work in (*pending, *pending)]
            comm.barrier()
            for wait in waits:
                wait.result(timeout=20)
            expected = comm.size * (comm.size + 1) / 2
            assert all((x == expected).all() for x in arrays), turn
            done += len(waits)
    return done


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_waiting_from_other_threads(num_ranks: int) -> None:
    assert hk.spawn(_run_waits, num_ranks, timeout=50) == [240] * num_ranks


def _run_own_communicators(comm: hk.Communicator) -> str:
    """One communicator per thread: no order between them is needed."""
    teams = [comm.dup() for _ in range(4)]

    def use(number: int) -> None:
        for turn in range(50):
            x = np.full((5, 3_000, 100_000)[turn % 3], float(number + turn))
            teams[number].all_reduce(x)
            assert (x == comm.size * (number + turn)).all(), (number, turn)

    with ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(use, number) for number in range(4)]:
            result.result(timeout=30)
    return "ok"


@pytest.mark.timeout(60)
def test_a_communicator_per_thread() -> None:
    assert hk.spawn(_run_own_communicators, 2, timeout=50) == ["ok"] * 2
