"""Operations that are never answered: `CommTimeout` in time, which names the missing ranks."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.errors import Aborted, CommTimeout, InvalidArgument

from ..naming import assert_names
from .bad_calls import attempt, works

_SOON_S = 0.2


def _run_recv(comm: hk.Communicator) -> list[tuple[str, str, tuple[int, ...]]]:
    """A receive that no other rank has seen can be given up, and the communicator stays usable."""
    seen = []
    if comm.rank == 0:
        for call in (
            lambda: comm.recv(np.zeros(3), 1, 2, timeout=_SOON_S),
            lambda: comm.irecv(np.zeros(3), 1, 2).wait(_SOON_S),
            lambda: comm.irecv(np.zeros(3), 1, 2, timeout=_SOON_S).wait(),
        ):
            error = attempt(call)
            assert isinstance(error, CommTimeout) and isinstance(error, TimeoutError), error
            seen.append((type(error).__name__, str(error), error.ranks))
    comm.barrier()
    x = np.zeros(3)
    if comm.rank == 0:
        comm.recv(x, 1, 2)
        assert x.tolist() == [7, 7, 7]
    else:
        comm.send(np.full(3, 7.0), 0, 2)
    works(comm)
    return seen


@pytest.mark.timeout(40)
def test_receive_that_nobody_answers() -> None:
    seen, _ = hk.spawn(_run_recv, 2, timeout=20)
    assert len(seen) == 3
    for _, text, ranks in seen:
        assert ranks == (1,)
        assert_names(text, "rank 0", "world", "recv", "rank 1", "tag 2", __file__)
        assert re.search(r"\b0\.2\d* s\Z", text), text  # it was measured
        assert "\n" not in text


def _run_collective(comm: hk.Communicator) -> tuple[list[str], tuple[int, ...]]:
    """Rank 2 does not join a collective of ranks 0 and 1: the communicator is broken, the world is not."""
    copy = comm.dup()
    error = None
    if comm.rank == 0:
        error = attempt(lambda: copy.all_reduce(np.zeros(3), timeout=_SOON_S))
    elif comm.rank == 1:
        error = attempt(lambda: copy.all_reduce(np.zeros(3)))  # rank 0 has notified this rank
    comm.barrier()
    later = attempt(copy.barrier)
    works(comm)
    return [f"{type(each).__name__}: {each}" for each in (error, later)], getattr(error, "ranks", ())


@pytest.mark.timeout(40)
def test_collective_that_one_stays_away_from() -> None:
    first, second, missing = hk.spawn(_run_collective, 3, timeout=20)
    for (error, later), ranks in (first, second):
        assert error.startswith(CommTimeout.__name__), error
        assert_names(error, "all_reduce(sum)", "rank 2")
        assert ranks == (2,)
        assert later.startswith(Aborted.__name__), later
    assert missing[0][1].startswith((Aborted.__name__, CommTimeout.__name__)), missing


def _run_values(comm: hk.Communicator) -> list[str]:
    x = np.zeros(3)
    comm.barrier(timeout=float("inf"))
    comm.all_reduce(x, timeout=1e300)
    comm.all_reduce(x, timeout=5)
    comm.all_reduce(x, timeout=None)
    work = comm.all_reduce(x, async_op=True, timeout=30)
    errors = [attempt(lambda value=value: work.wait(value)) for value in (-1.0, float("nan"))]
    work.wait(float("inf"))
    work.wait(0)  # it is done
    return [f"{type(error).__name__}: {error}" for error in errors]


@pytest.mark.timeout(40)
def test_values_of_timeouts() -> None:
    for errors in hk.spawn(_run_values, 2, timeout=20):
        for text in errors:
            assert text.startswith(InvalidArgument.__name__) and "timeout" in text, text


def _unwaited(comm: hk.Communicator, progress: Any) -> bool:
    comm.finalize()
    comm = hk.init(timeout=30, progress=progress)
    if comm.rank == 0:
        work = comm.irecv(np.zeros(3), 1, timeout=0.2)
        deadline_s = time.monotonic() + 20
        while not work.done and time.monotonic() < deadline_s:
            if progress == "caller":
                with contextlib.suppress(hk.CommTimeout):
                    work.test()
            time.sleep(0.001)
        error = work.exception()
        assert isinstance(error, hk.CommTimeout) and error.ranks == (1,), error
    comm.barrier()
    comm.finalize()
    return True


@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_a_receive_that_nobody_waits_for_has_a_deadline(progress: str) -> None:
    assert all(hk.spawn(_unwaited, 2, progress, timeout=50))
