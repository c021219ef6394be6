"""Messages about a backend that a communicator does not have."""

from __future__ import annotations

from typing import Any

import pytest

import hocket as hk
from hocket.backends import find_backends
from hocket.comm.unavailable import NOT_ASKED_FOR, why_unavailable

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def test_one_that_was_not_asked_for_can_be_brought_up() -> None:
    assert_names(why_unavailable("gloo", ["shm"], {"gloo": NOT_ASKED_FOR}), "'gloo'", "'shm'", "hk.init")


def test_one_that_is_not_installed_either_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_backends()["gloo"], "find_obstacle", classmethod(lambda cls: "gloo-obstacle"))
    message = why_unavailable("gloo", ["shm"], {"gloo": NOT_ASKED_FOR})
    assert_names(message, "gloo-obstacle")
    assert "hk.init" not in message


def test_one_that_was_left_out_has_its_reason() -> None:
    assert_names(why_unavailable("mpi", ["shm"], {"mpi": "mpi-reason"}), "'mpi'", "mpi-reason")


def test_one_that_nobody_spoke_of_is_not_meant_otherwise() -> None:
    message = why_unavailable("nccl", ["shm"], {})
    assert_names(message, "'nccl'", "nccl")
    assert "?" not in message


@pytest.mark.parametrize("backend", [3, b"shm", ["shm"]])
def test_what_is_no_name_is_shown(backend: object) -> None:
    assert_names(why_unavailable(backend, ["shm"], {}), repr(backend), "'shm'")


class _Entering:
    """A name whose repr enters hocket, as a garbage collection during the repr may."""

    def __init__(self, comm: hk.Communicator) -> None:
        self._comm = comm

    def __repr__(self) -> str:
        self._comm.barrier()
        return "entering"


def _name_what_enters(comm: hk.Communicator) -> str:
    wrong: Any = _Entering(comm.dup())
    try:
        comm.barrier(backend=wrong)
    except hk.BackendUnavailable as error:
        return str(error)
    return ""


def test_code_of_the_program_runs_without_the_lock() -> None:
    for message in hk.spawn(_name_what_enters, 2, timeout=50):
        assert_names(message, "entering")
