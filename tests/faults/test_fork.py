"""Children forked by a rank after init cannot use the job, and do not disturb the rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("progress", ["caller", "thread"])
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_forked_child(run_job: Callable[..., Any], progress: str, end: str) -> None:
    script = """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # of Python 3.12 and later
start_together()
comm = hk.init(timeout=10, progress=sys.argv[1])
half = comm.split(0)
comm.all_reduce(np.ones(300_000))
if RANK == 0:
    pending = comm.irecv(np.zeros(3), 1, tag=5)
    child = os.fork()
    if child == 0:
        for use in (comm.barrier, lambda: comm.split(0), pending.wait, pending.test, lambda: comm.group([0, 1])):
            error = caught(use)
            assert isinstance(error, hk.InvalidState) and "fork" in str(error), error
        comm.finalize()  # does nothing here
        del half, pending, comm
        exec(sys.argv[2])
    status = os.waitpid(child, 0)[1]
    note("child", status=status)
    set_flag("waited")
await_flags("waited")
for each in (comm, half):
    for n in (3, 5000, 300_000):
        x = np.full(n, RANK + 1.0)
        each.all_reduce(x)
        assert (x == 3).all()
# The child's exit does not count as the exit of its parent: a wait longer than a liveness check still succeeds.
if RANK == 1:
    set_flag("waits")
    comm.recv(x, 0)
    comm.send(np.zeros(3), 0, tag=5)
else:
    await_flags("waits")
    time.sleep(0.2)  # rank 1 checks liveness every 50 ms
    comm.send(x, 1)
    pending.wait()
"""
    job = run_job(script, 2, progress, end)
    assert job.return_code == 0, job.stderr
    assert job.stderr == ""
    assert job.notes("child")[0]["status"] == (9 if "KILL" in end else 0)
    assert [error["type"] for error in job.notes("error")] == ["InvalidState"] * 5


def test_workers_of_a_data_loader(run_job: Callable[..., Any]) -> None:
    script = """
import multiprocessing
def load(queue, number):
    queue.put(number * np.ones(4))
comm = hk.init(timeout=30, progress="thread")
context = multiprocessing.get_context("fork")
for epoch in range(3):
    queue = context.Queue()
    workers = [context.Process(target=load, args=(queue, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for _ in workers:
        x = queue.get()
        work = comm.all_reduce(x, async_op=True)
        work.wait()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    comm.barrier()
"""
    job = run_job(script, 2)
    assert (job.return_code, job.stderr) == (0, "")
