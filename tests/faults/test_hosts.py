"""Faults in a job on two hosts, where ranks hear of each other over a connection and not through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .. import backends

pytestmark = pytest.mark.timeout(120)

START = """
import importlib
from hocket.backends import declarations
declared = declarations()[sys.argv[1]]
if "torch" in declared.requires.modules:
    importlib.import_module("torch").set_num_threads(1)
comm = hk.init(backends=[sys.argv[1]], timeout=30)
assert comm.num_hosts == 2 and comm.local_size == SIZE // 2, (comm.num_hosts, comm.local_size)
x = np.ones(1 << 18, np.float32)
named = len(sys.argv) > 2 and (declared.has_collectives or sys.argv[2] != "native")
how = {"algorithm": sys.argv[2]} if named else {}
comm.all_reduce(x, **how)
assert (x == SIZE).all()
comm.barrier()
"""
WAYS = pytest.mark.parametrize("algorithm", ["native", "hierarchical"])
BETWEEN_HOSTS = pytest.mark.parametrize("backend", backends.BETWEEN_HOSTS)


@BETWEEN_HOSTS
@WAYS
@pytest.mark.parametrize("victim", [0, 3])
def test_death(run_on_hosts: Callable[..., Any], backend: str, algorithm: str, victim: int) -> None:
    script = f"""
victim = {victim}
if RANK == victim:
    tell("ready")
    await_told(*(f"issued-{{rank}}" for rank in range(SIZE) if rank != victim))
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
work = comm.all_reduce(x, async_op=True, **how)
tell(f"issued-{{RANK}}")
error = caught(work.wait)
assert isinstance(error, hk.PeerFailure) and error.ranks == (victim,), error
assert isinstance(caught(comm.barrier), (hk.PeerFailure, hk.Aborted))
note("over")
"""
    job = run_on_hosts(START + script, 2, backend, algorithm)
    assert len(job.notes("over")) == 3, job.stderr
    (dead,) = job.notes("dead")
    errors = {note["rank"]: note for note in reversed(job.notes("error"))}
    for rank, first in errors.items():
        assert f"rank {victim}" in first["text"] and "died" in first["text"], (rank, first)
        assert first["time_s"] - dead["time_s"] < 2, first


@BETWEEN_HOSTS
def test_who_gives_up_and_leaves_at_once_is_understood(run_on_hosts: Callable[..., Any], backend: str) -> None:
    script = """
for number in range(4):
    given_up = comm.dup()
    if RANK == 3:
        given_up.abort(f"reason {number}")
        given_up.finalize()
    else:
        error = caught(given_up.recv, np.ones(3), 3) if number % 2 else caught(given_up.all_reduce, np.ones(3))
        assert isinstance(error, hk.Aborted) and str(error).endswith(f"reason {number}"), error
note("over")
comm.barrier()
"""
    job = run_on_hosts(START + script, 2, backend)
    assert len(job.notes("over")) == 4, job.stderr


@BETWEEN_HOSTS
def test_leaving(run_on_hosts: Callable[..., Any], backend: str) -> None:
    """Who finalizes took part in all that was issued before; what comes after fails by name, and at once."""
    script = """
if RANK == 0:
    comm.finalize()
    note("left")
    tell("left")
    await_told("over")
else:
    await_told("left")
    error = caught(comm.all_reduce, x)
    assert isinstance(error, hk.PeerFailure) and error.ranks == (0,), error
    assert "left" in str(error), error
    tell("over")
"""
    job = run_on_hosts(START + script, 1, backend)
    assert job.return_codes == [0, 0], job.stderr
    (left,), (error,) = job.notes("left"), job.notes("error")
    assert error["time_s"] - max(left["time_s"], error["entered_s"]) < 2


@BETWEEN_HOSTS
@WAYS
def test_deadline_names_who_is_missing(run_on_hosts: Callable[..., Any], backend: str, algorithm: str) -> None:
    script = """
if RANK == 2:
    await_told("over-0", "over-1", "over-3")
    # Or what it hears first: that the others have left.
    # The word of it may be later than what gloo still had of the others.
    error = caught(comm.all_reduce, x, **how) or caught(comm.all_reduce, x, **how)
    assert isinstance(error, (hk.Aborted, hk.PeerFailure)), error
else:
    error = caught(comm.all_reduce, x, timeout=1.0, **how)
    # Whose time is over first tells the others, who wait for the same.
    assert isinstance(error, hk.CommTimeout) and error.ranks == (2,), (error, error.ranks)
    tell(f"over-{RANK}")
"""
    job = run_on_hosts(START + script, 2, backend, algorithm)
    assert job.return_codes == [0, 0], job.stderr


def test_mismatch_that_stalls(run_on_hosts: Callable[..., Any]) -> None:
    script = """
error = caught(comm.broadcast, x, RANK)
assert type(error) is hk.CollectiveMismatch, error
for word in ("number 3", "rank 0", "rank 1", "broadcast", "root 0", "root 1", "1048576 bytes", "float32", "gloo"):
    assert word in str(error), error
assert caught(comm.barrier) is not None
"""
    job = run_on_hosts(START + script, 1, "gloo")
    assert job.return_codes == [0, 0], job.stderr
    assert all(error["time_s"] - error["entered_s"] < 3 for error in job.notes("error")[:2])


def test_mismatch_that_goes_through(run_on_hosts: Callable[..., Any]) -> None:
    """MPI reduces with two operations at once, and does not notice."""
    script = """
def run():
    for turn in range(5000):
        comm.all_reduce(x[:100], "max" if (turn, RANK) == (200, 1) else "sum")
        time.sleep(0.01 if turn > 300 else 0)  # it is found within moments, not at once
error = caught(run)
assert type(error) is hk.CollectiveMismatch, error
for word in ("number 203", "rank 0", "all_reduce(sum)", "400 bytes", "float32", "mpi", "rank 1", "all_reduce(max)"):
    assert word in str(error), error
"""
    job = run_on_hosts(START + script, 1, "mpi")
    assert job.return_codes == [0, 0], job.stderr


def test_mismatch_before_leaving(run_on_hosts: Callable[..., Any]) -> None:
    script = """
if RANK == 0:
    comm.all_reduce(x, "max")
    comm.finalize()
else:
    error = caught(comm.all_reduce, x) or caught(comm.all_reduce, x)
    assert type(error) is hk.CollectiveMismatch and "rank 0" in str(error), error
"""
    job = run_on_hosts(START + script, 1, "mpi")
    assert job.return_codes == [0, 0], job.stderr


@BETWEEN_HOSTS
def test_uncaught_exception(run_on_hosts: Callable[..., Any], backend: str) -> None:
    script = """
if RANK == 1:
    raise RuntimeError("this rank has had enough")
error = caught(comm.all_reduce, x)
assert isinstance(error, (hk.PeerFailure, hk.Aborted)), error
assert "1" in str(error), error
"""
    job = run_on_hosts(START + script, 1, backend)
    assert sorted(job.return_codes) == [0, 1], job.stderr
    assert "this rank has had enough" in job.stderr


def test_again_after_finalize(run_on_hosts: Callable[..., Any]) -> None:
    script = """
for turn in range(3):
    comm.finalize()
    comm = hk.init(backends=[sys.argv[1]], timeout=30)
    comm.all_reduce(x)
"""
    job = run_on_hosts(START + script, 2, "gloo")
    assert job.return_codes == [0, 0], job.stderr


def test_forked_children_keep_no_connection(run_on_hosts: Callable[..., Any]) -> None:
    """A data loader's worker that lives on does not hide the death of its rank."""
    script = """
if RANK == 1:
    child = os.fork()
    if child == 0:
        os.setsid()  # out of the reach of the launcher, which ends what is left of a rank's group
        tell("forked")
        await_told("over")
        os._exit(0)
    await_told("forked")
    os.kill(os.getpid(), signal.SIGKILL)
await_told("forked")
error = caught(comm.all_reduce, x)
tell("over")
assert isinstance(error, hk.PeerFailure) and "died" in str(error), error
"""
    job = run_on_hosts(START + script, 1, "gloo")
    assert 0 in job.return_codes, job.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_who_never_arrives_is_named(run_on_hosts: Callable[..., Any], rank: int) -> None:
    script = """
if RANK == int(sys.argv[1]):
    await_told("over")
    sys.exit()
error = caught(hk.init, backends=["gloo"], timeout=2.0)
assert isinstance(error, hk.CommTimeout) and error.ranks == (int(sys.argv[1]),), error
tell("over")
"""
    job = run_on_hosts(script, 1, str(rank))
    assert job.return_codes == [0, 0], job.stderr


def test_contradictions(run_on_hosts: Callable[..., Any]) -> None:
    script = """
if RANK == 1:
    os.environ["HOCKET_HOST"] = "host-0"
error = caught(hk.init, backends=["gloo"], timeout=20.0)
assert type(error) is hk.BootstrapMismatch and "LOCAL_WORLD_SIZE" in str(error), error
del os.environ["MASTER_ADDR"]
error = caught(hk.init, backends=["gloo"], timeout=20.0)
assert type(error) is hk.BootstrapMismatch and "MASTER_ADDR" in str(error), error
os.environ["HOCKET_CONTROL"] = "nowhere"
error = caught(hk.init, backends=["gloo"], timeout=20.0)
assert type(error) is hk.BootstrapMismatch and "HOST:PORT" in str(error), error
error = caught(hk.init, backends="shm", timeout=20.0)
assert type(error) is hk.BackendUnavailable and "'shm'" in str(error), error
"""
    job = run_on_hosts(script, 1)
    assert job.return_codes == [0, 0], job.stderr


@pytest.mark.parametrize("victim", [0, 3])
def test_shrink(run_on_hosts: Callable[..., Any], victim: int) -> None:
    """gloo goes on without any rank, rank 0 included."""
    script = f"""
victim = {victim}
if RANK == victim:
    os.kill(os.getpid(), signal.SIGKILL)
assert isinstance(caught(comm.all_reduce, x), (hk.PeerFailure, hk.Aborted))
rest = comm.shrink()
left = [rank for rank in range(4) if rank != victim]
assert rest.num_hosts == 2 and rest.all_gather_object(RANK) == left, rest
x.fill(1)
rest.all_reduce(x)
assert (x == 3).all()
rest.finalize()
note("over")
"""
    job = run_on_hosts(START + script, 2, "gloo")
    assert len(job.notes("over")) == 3, job.stderr


@BETWEEN_HOSTS
@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_interrupts_belong_to_the_program(run_on_hosts: Callable[..., Any], backend: str, progress: str) -> None:
    """Whoever of hocket is in Python when a signal comes: the operation goes on, and the program gets the exception."""
    script = """
if RANK == 0:
    work = comm.all_reduce(x, async_op=True, **how)
    for i in range(10):
        watcher = threading.Timer(0.02 * (i + 1), os.kill, (os.getpid(), signal.SIGINT))
        error = caught(lambda: (watcher.start(), work.wait()))
        assert isinstance(error, KeyboardInterrupt), error
        watcher.join()
    tell("interrupted")
    work.wait()
else:
    await_told("interrupted")
    comm.all_reduce(x, **how)
assert (x == SIZE * SIZE).all()
comm.barrier()
"""
    start = START.replace("timeout=30", f"timeout=30, progress={progress!r}")
    job = run_on_hosts(start + script, 1, backend, "native")
    assert job.return_codes == [0, 0], job.stderr
    assert len(job.notes("error")) == 10
