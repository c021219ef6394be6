"""A child forked after init: every use is an error, and neither its life nor its end affects the ranks."""

from __future__ import annotations

import json
import os
import select
import signal
import sys

import numpy as np
import pytest

import hocket as hk
from hocket import _native
from hocket.errors import InvalidState

from .bad_calls import attempt, works

_CHILD_DEADLINE_MS = 15_000


def _uses(comm: hk.Communicator, work: hk.Work) -> dict[str, str]:
    """The error of each use in the child."""
    uses = {
        "all_reduce": lambda: comm.all_reduce(np.zeros(2)),
        "barrier": comm.barrier,
        "send": lambda: comm.send(np.zeros(2), 1 % comm.size),
        "irecv": lambda: comm.irecv(np.zeros(2), 0),
        "split": lambda: comm.split(0),
        "dup": comm.dup,
        "group": lambda: comm.group([comm.rank]),
        "wait": work.wait,
        "test": work.test,
    }
    errors = {name: attempt(use) for name, use in uses.items()}
    return {name: f"{type(error).__name__}: {error}" for name, error in errors.items()}


def _in_child(comm: hk.Communicator, work: hk.Work, ending: str) -> dict[str, str]:
    """Fork, let the child try everything, and end it in the given way; return its errors."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        seen = _uses(comm, work)
        comm.finalize()
        comm.finalize()
        os.write(writer, json.dumps(seen).encode())
        if ending == "_exit":
            os._exit(0)
        sys.exit(0)  # runs exit handlers, and the destructors of the core
    os.close(writer)
    child = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(_CHILD_DEADLINE_MS), "the child hangs"
    _, status = os.waitpid(pid, 0)
    os.close(child)
    with os.fdopen(reader) as pipe:
        seen = json.loads(pipe.read())
    assert os.waitstatus_to_exitcode(status) == 0
    return seen


def _run(comm: hk.Communicator, ending: str, with_thread: bool) -> dict[str, str]:
    if with_thread:
        _native.start_progress_thread()
    copy = comm.dup()
    works(comm)
    x = np.full(200_000, 1.0)
    pending = comm.irecv(x, (comm.rank + 1) % comm.size, 9)
    seen = _in_child(comm, pending, ending)
    # The ranks continue undisturbed: those that forked, and those that wait for them.
    works(comm)
    send = comm.isend(np.full(200_000, 3.0), (comm.rank - 1) % comm.size, 9)
    pending.wait()
    send.wait()
    assert (x == 3).all()
    works(copy)
    return seen


@pytest.mark.timeout(60)
@pytest.mark.parametrize("with_thread", [False, True], ids=["caller", "thread"])
@pytest.mark.parametrize("ending", ["_exit", "normal exit"])
def test_forked_child(ending: str, with_thread: bool) -> None:
    for seen in hk.spawn(_run, 2, ending, with_thread, timeout=50):
        assert len(seen) == 9
        for name, text in seen.items():
            assert text.startswith(InvalidState.__name__) and "fork" in text and "\n" not in text, f"{name}: {text}"


def _run_records(comm: hk.Communicator) -> str:
    """Reading records is allowed."""
    _native.start_progress_thread()
    works(comm)
    for _ in range(50):  # the thread may hold the core's lock at the moment of the fork
        pending = comm.irecv(np.zeros(1), comm.rank, 1)
        pid = os.fork()
        if pid == 0:
            ok = len(comm.records()) > 2 and "world" in repr(comm) and comm.size == 1 and not pending.done
            os._exit(0 if ok else 1)
        child = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        if not poll.poll(_CHILD_DEADLINE_MS):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("the child hangs")
        os.close(child)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        comm.send(np.zeros(1), comm.rank, 1)
        pending.wait()
    works(comm)
    return "ok"


@pytest.mark.timeout(40)
def test_forked_child_may_look() -> None:
    assert hk.spawn(_run_records, 1, timeout=30) == ["ok"]
