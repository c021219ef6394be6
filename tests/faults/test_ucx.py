"""Faults specific to UCX: it sends only while it is progressed, and a process has one worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..tier import sample

pytestmark = pytest.mark.timeout(120)

TRANSPORTS = pytest.mark.parametrize("transports", ["all", "tcp,self"])


@TRANSPORTS
@pytest.mark.parametrize("nbytes", sample([1, 4000, 60_000], 2))
def test_messages_arrive_after_their_sender_has_left(run_job: Callable[..., Any], transports: str, nbytes: int) -> None:
    """A send of this size completes before its data is transmitted."""
    script = """
comm = hk.init(backends="ucx", timeout=30)
x = np.zeros(int(sys.argv[1]), np.uint8)
comm.barrier()
if RANK == 0:
    for number in range(100):
        comm.isend(np.full_like(x, number), 1, number % 3)
    receives_before = comm.irecv(x, 1)
    comm.send(x, 1, 9)
    receives_before.wait()
    comm.finalize()
    set_flag("left")
else:
    works = [(np.empty_like(x), number) for number in range(100)]
    works = [(y, number, comm.irecv(y, 0, number % 3)) for y, number in works]
    comm.send(x, 0)
    comm.recv(x, 0, 9)
    await_flags("left")
    for y, number, work in works:
        work.wait()
        assert (y == number).all()
"""
    job = run_job(script, 2, str(nbytes), UCX_TLS=transports)
    assert job.return_code == 0, job.stderr


@TRANSPORTS
def test_receive_that_timed_out(run_job: Callable[..., Any], transports: str) -> None:
    """Late data is not written to the array of a timed-out receive, and the ranks can use another communicator."""
    script = """
comm = hk.init(backends="ucx", timeout=30)
other = comm.dup()
for nbytes in (8, 1 << 20):
    part, x = comm.dup(), np.zeros(nbytes, np.uint8)
    if RANK == 0:
        await_flags(f"over-{nbytes}")
        error = caught(part.send, np.ones(nbytes, np.uint8), 1)
        assert error is None or isinstance(error, hk.Aborted), error
    else:
        error = caught(part.recv, x, 0, timeout=0.3)
        assert isinstance(error, hk.CommTimeout) and error.ranks == (0,), error
        set_flag(f"over-{nbytes}")
    other.barrier()
    assert not x.any()
y = np.ones(1 << 20)
other.all_reduce(y)
assert (y == 2).all() and not x.any()
"""
    job = run_job(script, 2, UCX_TLS=transports)
    assert job.return_code == 0, job.stderr


@TRANSPORTS
@pytest.mark.parametrize("sends", [True, False], ids=["victim receives", "victim sends"])
def test_death_in_the_middle_of_long_messages(run_job: Callable[..., Any], transports: str, sends: bool) -> None:
    script = """
comm = hk.init(backends="ucx", timeout=30)
comm.barrier()
arrays = [np.ones(8 << 20) for _ in range(4)]
survivor_sends = sys.argv[1] == "True"
call = comm.isend if (RANK == 0) == survivor_sends else comm.irecv
works = [call(x, 1 - RANK) for x in arrays]
works[0].wait()  # the others are in flight
if RANK == 1:
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
errors = [caught(work.wait) for work in works]
error = next((each for each in errors if each is not None), None) or caught(comm.barrier)
assert isinstance(error, hk.PeerFailure) and error.ranks == (1,), error
rest = comm.shrink()
x = np.ones(3)
rest.all_reduce(x, backend="ucx")
assert (x == 1).all()
note("over")
"""
    job = run_job(script, 2, str(sends), UCX_TLS=transports)
    assert len(job.notes("over")) == 1, job.stderr
    (dead,), errors = job.notes("dead"), job.notes("error")
    assert errors[0]["time_s"] - dead["time_s"] < 2


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
@TRANSPORTS
def test_forked_child(run_job: Callable[..., Any], transports: str, end: str) -> None:
    """A forked child must not close resources that it shares with its parent."""
    script = """
comm = hk.init(backends="ucx", timeout=30)
x = np.ones(1 << 18)
comm.all_reduce(x)
if RANK == 0:
    child = os.fork()
    if child == 0:
        assert isinstance(caught(comm.barrier), hk.InvalidState)
        del comm
        exec(sys.argv[1])
    note("child", status=os.waitpid(child, 0)[1])
    set_flag("waited")
await_flags("waited")
for _ in range(20):
    comm.all_reduce(x, "max")
half = comm.split(RANK)
half.barrier()
comm.barrier()
"""
    job = run_job(script, 2, end, UCX_TLS=transports)
    assert job.return_code == 0, job.stderr
    assert job.notes("child")[0]["status"] == 0


@pytest.mark.fresh_ranks
def test_cycles_of_init_and_finalize(run_job: Callable[..., Any]) -> None:
    script = """
def counts():
    hk.init(backends="shm", timeout=30).finalize()  # the next init frees what a finalized communicator keeps
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def cycle():
    comm = hk.init(backends=["shm", "ucx"], timeout=30)
    x = np.ones(200_000)
    comm.all_reduce(x, backend="ucx")
    comm.split(0).barrier(backend="ucx")
    comm.finalize()

for _ in range(3):
    cycle()
before = counts()
for _ in range(20):
    cycle()
note("counts", before=before, after=counts())
"""
    job = run_job(script, 2)
    assert (job.return_code, job.stderr) == (0, "")
    for note in job.notes("counts"):
        assert note["after"] == note["before"]
