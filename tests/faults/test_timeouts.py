"""Deadlines of single calls and waits, and the state of communicators afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def run_well(run_job: Callable[..., Any], script: str, num_ranks: int, *args: str) -> Any:
    job = run_job(script, num_ranks, *args)
    assert job.return_code == 0, job.stderr
    return job


def test_collective_names_missing_ranks_and_reports_the_stall_once(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
comm.barrier()
if RANK in (1, 3):
    await_flags("late-0", "late-2")
    # All contributions to the first collective are there. In the next one, another rank has timed out.
    error = caught(comm.all_reduce, np.ones(4)) or caught(comm.barrier)
    assert isinstance(error, hk.Aborted), error
else:
    error = caught(comm.all_reduce, np.ones(4), timeout=2)
    assert isinstance(error, hk.CommTimeout) and isinstance(error, TimeoutError) and error.ranks == (1, 3)
    assert isinstance(caught(comm.barrier), hk.Aborted)
    set_flag(f"late-{RANK}")
"""
    job = run_well(run_job, script, 4)
    timed_out = [error for error in job.notes("error") if error["type"] == "CommTimeout"]
    assert [sorted(error["rank"] for error in timed_out)] == [[0, 2]]
    for error in timed_out:
        assert 1.5 < error["time_s"] - error["entered_s"] < 4
        assert_names(error["text"], "ranks 1 and 3", "number 2")
        assert "prelude.py:" in error["text"]
    lines = [line for line in job.stderr.splitlines() if line.startswith("hocket: rank ")]
    assert 1 <= len(lines) <= 2
    for line in lines:
        assert_names(line, "ranks 1 and 3", "all_reduce(sum)")


@pytest.mark.parametrize("handler", ["handles", "raises", "handles errors only"])
def test_a_stall_is_reported_to_the_logger(run_job: Callable[..., Any], handler: str) -> None:
    """Without a handler, the report goes to standard error; a failing handler ends neither the wait nor the rank."""
    script = """
import logging
handled = []
class Handler(logging.Handler):
    def emit(self, record):
        handled.append(record.getMessage())
        if sys.argv[1] == "raises":
            raise RuntimeError
comm = hk.init(timeout=30)
if RANK == 0:
    logging.getLogger("hocket").addHandler(Handler(logging.ERROR if "errors" in sys.argv[1] else logging.WARNING))
    error = caught(comm.recv, np.ones(4), 1, timeout=2)
    assert isinstance(error, hk.CommTimeout), error
    print(*(text for text in handled if "still waiting" in text), flush=True)
    set_flag("over")
else:
    await_flags("over")
"""
    job = run_well(run_job, script, 2, handler)
    assert_names(job.stderr if "errors" in handler else job.stdout, "rank 0", "recv", "rank 1", "prelude.py:")
    lines = [line for line in job.stderr.splitlines() if line.startswith("hocket:")]
    assert len(lines) == (handler != "handles")
    assert ("RuntimeError" in job.stderr) == (handler == "raises")


def test_no_stall_report_of_a_short_wait(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 0:
    comm.recv(np.zeros(3), 1)
    comm.barrier()
else:
    comm.barrier(async_op=True)
    comm.send(np.zeros(3), 0)
"""
    assert run_well(run_job, script, 2).stderr == ""


def test_receive_that_times_out_leaves_the_communicator_usable(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
x = np.zeros(5)
if RANK == 0:
    error = caught(comm.recv, x, 1, tag=4, timeout=0.3)
    assert isinstance(error, hk.CommTimeout) and error.ranks == (1,)
    work = comm.irecv(x, 1, tag=4)
    error = caught(work.wait, 0.3)
    assert isinstance(error, hk.CommTimeout)
    set_flag("late")
    comm.recv(x, 1, tag=4)
    assert (x == 7).all()
else:
    await_flags("late")
    comm.send(np.full(5, 7.0), 0, tag=4)
comm.all_reduce(x)
comm.barrier()
"""
    run_well(run_job, script, 2)


@pytest.mark.parametrize("mode", ["recv", "send", "wait"])
def test_long_message_that_stops_in_the_middle(run_job: Callable[..., Any], mode: str) -> None:
    # The peer starts the message and then stalls: this cannot be undone, so the communicator is aborted.
    script = """
comm = hk.init(timeout=30, progress="caller")
x = np.zeros(1_000_000)
if RANK == 0:
    if sys.argv[1] == "send":
        comm.barrier()
        call = lambda: comm.send(x, 1, timeout=0.5)
    elif sys.argv[1] == "recv":
        comm.barrier()
        call = lambda: comm.recv(x, 1, timeout=0.5)
    else:
        comm.barrier()
        call = lambda: comm.irecv(x, 1).wait(0.5)
    assert isinstance(caught(call), hk.CommTimeout)
    assert isinstance(caught(comm.barrier), hk.Aborted)
    set_flag("over")
else:
    work = comm.irecv(x, 0) if sys.argv[1] == "send" else comm.isend(x, 0)
    comm.barrier()
    await_flags("over")
    assert caught(work.wait) is not None
"""
    run_well(run_job, script, 2, mode)


def test_wait_with_a_timeout_and_poll_with_a_deadline(run_job: Callable[..., Any]) -> None:
    # `test` never waits, but polling detects that the deadline has passed.
    script = """
comm = hk.init(timeout=30, progress="caller")
pair = comm.dup()
if RANK == 0:
    work = comm.all_reduce(np.ones(4), async_op=True)
    error = caught(work.wait, 0.5)
    assert isinstance(error, hk.CommTimeout) and error.ranks == (1,)
    assert isinstance(work.exception(), hk.CommTimeout) and work.done
    work = pair.all_reduce(np.ones(4), async_op=True, timeout=0.5)
    error = caught(wait_until, work.test)
    assert isinstance(error, hk.CommTimeout) and error.ranks == (1,)
    set_flag("over")
await_flags("over")
"""
    run_well(run_job, script, 2)


@pytest.mark.parametrize("make", ["split", "dup", "group"])
def test_making_a_communicator_has_a_deadline(run_job: Callable[..., Any], make: str) -> None:
    script = """
start_together()
comm = hk.init(timeout=2)
make = {"split": lambda: comm.split(0), "dup": comm.dup, "group": lambda: comm.group([1, 0])}[sys.argv[1]]
if RANK == 0:
    error = caught(make)
    assert isinstance(error, hk.CommTimeout) and error.ranks == ((0,) if sys.argv[1] == "group" else (1,)), error
    set_flag("over")
await_flags("over")
"""
    job = run_well(run_job, script, 2, make)
    assert list(job.records()) == [0]
