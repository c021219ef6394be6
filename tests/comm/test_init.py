"""`hocket.init` and its arguments."""

from __future__ import annotations

from typing import Any

import pytest

import hocket as hk
from hocket import _native
from hocket.errors import BackendUnavailable, HocketError, InvalidArgument, InvalidState

from ..naming import assert_names
from .bad_calls import attempt, works

_BAD: dict[str, tuple[dict[str, Any], type[HocketError], tuple[str, ...]]] = {
    "backend": ({"backends": "sharp"}, BackendUnavailable, ("'sharp'", "shm", "gloo")),
    "backends": ({"backends": ["shm", "sharp"]}, BackendUnavailable, ("'sharp'", "shm", "mpi")),
    "backend of a number": ({"backends": 3}, InvalidArgument, ("backends", "3")),
    "policy": ({"policy": "fastest"}, InvalidArgument, ("policy", "'auto'", "'fastest'")),
    "timeout 0": ({"timeout": 0}, InvalidArgument, ("timeout", "0")),
    "timeout negative": ({"timeout": -2.5}, InvalidArgument, ("timeout", "-2.5")),
    "timeout nan": ({"timeout": float("nan")}, InvalidArgument, ("timeout", "nan")),
    "timeout text": ({"timeout": "10"}, InvalidArgument, ("timeout", "'10'")),
    "timeout None": ({"timeout": None}, InvalidArgument, ("timeout", "None")),
    "progress": ({"progress": "fork"}, InvalidArgument, ("progress", "'caller'", "'fork'")),
    "deterministic": ({"deterministic": "yes"}, InvalidArgument, ("deterministic", "'yes'")),
}


def _run(comm: hk.Communicator) -> dict[str, BaseException | None]:
    errors = {"twice": attempt(hk.init)}
    comm.finalize()
    errors |= {name: attempt(lambda options=options: hk.init(**options)) for name, (options, _, _) in _BAD.items()}
    works(hk.init(timeout=20))  # the failed calls have left nothing behind
    return errors


@pytest.fixture(scope="module")
def errors() -> dict[str, BaseException | None]:
    of_rank_0, of_rank_1 = hk.spawn(_run, 2, timeout=30)
    assert {name: str(error) for name, error in of_rank_0.items()} == {n: str(e) for n, e in of_rank_1.items()}
    return of_rank_0


@pytest.mark.timeout(40)
@pytest.mark.parametrize("name", _BAD)
def test_bad_argument(errors: dict[str, BaseException | None], name: str) -> None:
    _, kind, names = _BAD[name]
    assert type(errors[name]) is kind, repr(errors[name])
    assert_names(str(errors[name]), *names)


@pytest.mark.timeout(40)
def test_init_twice(errors: dict[str, BaseException | None]) -> None:
    assert type(errors["twice"]) is InvalidState
    assert "finalize()" in str(errors["twice"])


def _run_good(comm: hk.Communicator, options: dict[str, Any]) -> tuple[bool, float]:
    comm.finalize()
    comm = hk.init(**options)
    works(comm)
    return _native.has_progress_thread(), comm.timeout


@pytest.mark.timeout(40)
@pytest.mark.parametrize(
    ("options", "thread"),
    [
        ({"progress": "caller"}, False),
        ({"progress": "thread"}, True),
        ({"backends": "shm", "policy": "auto", "timeout": 7, "progress": "caller", "deterministic": True}, False),
        ({"backends": ["shm"], "progress": "caller", "timeout": float("inf")}, False),
        ({"backends": (), "progress": "caller"}, False),
    ],
    ids=["caller", "thread", "all", "inf", "none"],
)
def test_good_arguments(options: dict[str, Any], thread: bool) -> None:
    assert hk.spawn(_run_good, 2, options, timeout=30) == [(thread, options.get("timeout", 600.0))] * 2


def _facts(comm: hk.Communicator) -> tuple[Any, ...]:
    assert isinstance(comm, hk.Communicator)
    return comm.rank, comm.size, comm.local_rank, comm.local_size, list(comm.backends), repr(comm)


@pytest.mark.timeout(40)
def test_facts_of_the_world() -> None:
    facts = hk.spawn(_facts, 3, timeout=30)
    assert facts == [(r, 3, r, 3, ["shm", "mpi"], f"<hocket.Communicator world: rank {r} of 3>") for r in range(3)]


def _run_without_interface(comm: hk.Communicator) -> tuple[str, BaseException | None]:
    rank = comm.rank
    comm.finalize()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setenv("GLOO_SOCKET_IFNAME", "no-such-link")
        error = attempt(lambda: hk.init(backends=["shm", "gloo"], timeout=20))
        comm = hk.init(timeout=20)
    works(comm)
    return str(comm.explain("all_reduce", 1 << 20)), error


@pytest.mark.timeout(40)
def test_gloo_has_no_network_interface() -> None:
    for explained, error in hk.spawn(_run_without_interface, 2, timeout=30):
        assert type(error) is BackendUnavailable
        assert_names(str(error), "rank 1", "gloo", "GLOO_SOCKET_IFNAME", "'no-such-link'")
        assert "gloo" not in explained
