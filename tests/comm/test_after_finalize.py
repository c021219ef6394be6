"""A finalized communicator: every use raises an error that says so, except finalizing it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

import hocket as hk
from hocket.errors import Aborted, InvalidState, PeerFailure

from .bad_calls import attempt, works

_USES: dict[str, Callable[[hk.Communicator], object]] = {
    "all_reduce": lambda c: c.all_reduce(np.zeros(2)),
    "async": lambda c: c.all_reduce(np.zeros(2), async_op=True),
    "reduce": lambda c: c.reduce(np.zeros(2), 0),
    "broadcast": lambda c: c.broadcast(np.zeros(2), 0),
    "barrier": lambda c: c.barrier(),
    "all_gather": lambda c: c.all_gather(np.zeros(4), np.zeros(2)),
    "reduce_scatter": lambda c: c.reduce_scatter(np.zeros(2), np.zeros(4)),
    "all_to_all": lambda c: c.all_to_all(np.zeros(4), np.ones(4)),
    "send": lambda c: c.send(np.zeros(2), 1),
    "recv": lambda c: c.recv(np.zeros(2), 1),
    "isend": lambda c: c.isend(np.zeros(2), 1),
    "irecv": lambda c: c.irecv(np.zeros(2), 1),
    "split": lambda c: c.split(0),
    "dup": lambda c: c.dup(),
    "group": lambda c: c.group([0, 1]),
}


def _run_uses(comm: hk.Communicator) -> dict[str, BaseException | None]:
    copy = comm.dup()
    half = copy.split(0)
    assert half is not None
    copy.all_reduce(np.zeros(3))
    copy.finalize()
    copy.finalize()
    errors = {name: attempt(lambda use=use: use(copy)) for name, use in _USES.items()}
    errors["child"] = attempt(half.barrier)  # communicators made from it are finalized as well
    assert [record.op for record in copy.records()] == ["split", "all_reduce"]
    assert repr(copy) == f"<hocket.Communicator dup of world: rank {comm.rank} of 2, finalized>"
    works(comm)
    return errors


@pytest.mark.timeout(40)
def test_use_after_finalize() -> None:
    for errors in hk.spawn(_run_uses, 2, timeout=30):
        assert set(errors) == {*_USES, "child"}
        for name, error in errors.items():
            assert type(error) is InvalidState, f"{name}: {error!r}"
            assert "finalized" in str(error) and "world" in str(error) and "\n" not in str(error), str(error)


def _run_again(comm: hk.Communicator) -> list[int]:
    """The world can be finalized and made again."""
    seen = []
    for generation in range(3):
        works(comm)
        comm.finalize()
        assert isinstance(attempt(comm.barrier), InvalidState)
        comm = hk.init(timeout=20)
        seen.append(comm.size + generation)
    works(comm)
    return seen


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_init_after_finalize(num_ranks: int) -> None:
    assert hk.spawn(_run_again, num_ranks, timeout=50) == [[num_ranks, num_ranks + 1, num_ranks + 2]] * num_ranks


def _run_context(comm: hk.Communicator) -> str:
    with comm.dup() as copy:
        works(copy)
    assert isinstance(attempt(copy.barrier), InvalidState)
    x = np.full(1_000_000, 1.0)
    with comm.dup() as copy:
        work = copy.all_reduce(x, async_op=True)
    work.wait()  # finalize() has waited for operations in flight
    assert work.done and (x == comm.size).all()
    works(comm)
    return "ok"


@pytest.mark.timeout(40)
def test_context_manager_waits_and_leaves() -> None:
    assert hk.spawn(_run_context, 3, timeout=30) == ["ok"] * 3


def _run_error_in_context(comm: hk.Communicator, in_flight: bool) -> str:
    """An exception in the block is not delayed by operations that never complete; the other ranks are notified."""
    copy = comm.dup()
    if comm.rank == 0:
        pending = []
        with contextlib.suppress(KeyError), copy:
            if in_flight:
                pending.append(copy.irecv(np.zeros(3), 1))
            raise KeyError("inside")
        for work in pending:
            error = attempt(work.wait)
            assert isinstance(error, Aborted) and "finalized" in str(error), error
    error = attempt(lambda: copy.all_reduce(np.zeros(3)))
    works(comm)
    return f"{type(error).__name__}: {error}"


@pytest.mark.timeout(40)
@pytest.mark.parametrize("in_flight", [False, True])
def test_error_inside_a_context(in_flight: bool) -> None:
    at_0, at_1 = hk.spawn(_run_error_in_context, 2, in_flight, timeout=20)
    assert at_0.startswith(InvalidState.__name__)
    # Aborted if operations were in flight; otherwise the rank has simply left.
    names = (PeerFailure.__name__, Aborted.__name__) if in_flight else PeerFailure.__name__
    assert at_1.startswith(names) and "rank 0" in at_1, at_1
