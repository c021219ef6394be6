"""Signals to a rank that waits in hocket."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)

INTERRUPTS = """
comm = hk.init(timeout=30, progress=sys.argv[1])
works, arrays = [], [np.full(n, RANK + 1.0) for n in (3, 500, 1_000_000, 17)]
received = np.zeros(100_000)
entered = threading.Event()

def interrupted(call, *args):
    def watch():
        # This thread runs once the main thread has released the GIL for its wait.
        entered.wait()
        note("sent")
        os.kill(os.getpid(), signal.SIGINT)
    entered.clear()
    watcher = threading.Thread(target=watch)
    watcher.start()
    entered.set()
    assert isinstance(caught(call, *args), KeyboardInterrupt)
    watcher.join()

if RANK == 0:
    interrupted(comm.all_reduce, arrays[0])
    for x in arrays[1:]:
        interrupted(comm.all_reduce, x)
    work = comm.barrier(async_op=True)
    interrupted(work.wait)
    assert not work.done
    interrupted(comm.recv, received, 1)
    assert [each.state for each in comm.records()].count("completed") == 0
    set_flag("interrupted")
else:
    await_flags("interrupted")
    for x in arrays:
        comm.all_reduce(x)
    comm.barrier()
    comm.send(np.arange(100_000.0), 0)
# On both ranks, the next operations and the interrupted ones have correct results.
y = np.full(1000, RANK + 1.0)
comm.all_reduce(y)
comm.barrier()
assert (y == 3).all()
for x in arrays:
    assert (x == 3).all()
if RANK == 0:
    reply = np.zeros(1)
    comm.recv(reply, 1, tag=3)
    assert (received == np.arange(100_000.0)).all()
else:
    comm.send(np.ones(1), 0, tag=3)
"""


@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_interrupt_leaves_the_operation_pending(run_job: Callable[..., Any], progress: str) -> None:
    job = run_job(INTERRUPTS, 2, progress)
    assert job.return_code == 0, job.stderr
    errors = [note for note in job.notes("error") if note["type"] == "KeyboardInterrupt"]
    delays = [error["time_s"] - sent["time_s"] for error, sent in zip(errors, job.notes("sent"), strict=True)]
    assert len(delays) == 6
    assert statistics.median(delays) < 0.2, delays
    assert max(delays) < 2, delays


def test_sigterm_handler_that_returns_does_not_disturb_a_wait(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
x = np.full(5, RANK + 1.0)
if RANK == 0:
    signal.signal(signal.SIGTERM, lambda *_: set_flag("handled"))
    threading.Thread(target=lambda: (wait_until(lambda: is_in_flight(comm, "all_reduce")),
                                     os.kill(os.getpid(), signal.SIGTERM))).start()
else:
    await_flags("handled")  # set while rank 0 waits
comm.all_reduce(x)
assert (x == 3).all()
"""
    assert run_job(script, 2).return_code == 0


def test_sigterm_handler_that_exits(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 0:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    threading.Thread(target=lambda: (wait_until(lambda: is_in_flight(comm, "recv")),
                                     os.kill(os.getpid(), signal.SIGTERM))).start()
    comm.recv(np.zeros(3), 1)
error = caught(comm.recv, np.zeros(3), 0)
if error is not None:
    raise error
"""
    job = run_job(script, 2)
    assert job.return_code == 7
    first, second, *_ = job.stderr.splitlines()
    assert_names(first, "rank 0", "7")
    assert second.startswith("rank 1: ")
    (error,) = job.notes("error")
    assert error["type"] in ("PeerFailure", "Aborted")


def test_interrupt_of_the_launcher_ends_waiting_ranks(jobs: Any) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 0:
    note("inside")
    comm.recv(np.zeros(3), 1)
note("inside")
comm.recv(np.zeros(3), 0)
"""
    job = jobs.start(script, 2)
    job.wait_for_note("inside", 2)
    job.processes[0].send_signal(signal.SIGINT)
    job.finish()
    assert job.return_code == 130
    assert_names(job.stderr.splitlines()[0], "hocket run", "SIGINT")
    assert "Traceback" not in job.stderr
