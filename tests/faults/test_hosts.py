"""Faults in a job on two hosts, where ranks detect them over connections instead of shared memory."""

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
ALGORITHMS = pytest.mark.parametrize("algorithm", ["native", "hierarchical"])
BETWEEN_HOSTS = pytest.mark.parametrize("backend", backends.BETWEEN_HOSTS)


@BETWEEN_HOSTS
@ALGORITHMS
@pytest.mark.parametrize("victim", [0, 3])
def test_death(run_on_hosts: Callable[..., Any], backend: str, algorithm: str, victim: int) -> None:
    script = f"""
victim = {victim}
if RANK == victim:
    set_flag("ready")
    await_flags(*(f"issued-{{rank}}" for rank in range(SIZE) if rank != victim))
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
work = comm.all_reduce(x, async_op=True, **how)
set_flag(f"issued-{{RANK}}")
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
def test_abort_followed_by_finalize_is_reported(run_on_hosts: Callable[..., Any], backend: str) -> None:
    script = """
for number in range(4):
    aborted = comm.dup()
    if RANK == 3:
        aborted.abort(f"reason {number}")
        aborted.finalize()
    else:
        error = caught(aborted.recv, np.ones(3), 3) if number % 2 else caught(aborted.all_reduce, np.ones(3))
        assert isinstance(error, hk.Aborted) and str(error).endswith(f"reason {number}"), error
note("over")
comm.barrier()
"""
    job = run_on_hosts(START + script, 2, backend)
    assert len(job.notes("over")) == 4, job.stderr


@BETWEEN_HOSTS
def test_leaving(run_on_hosts: Callable[..., Any], backend: str) -> None:
    """A rank that finalizes completes all earlier operations; later ones fail at once and name this rank."""
    script = """
if RANK == 0:
    comm.finalize()
    note("left")
    set_flag("left")
    await_flags("over")
else:
    await_flags("left")
    error = caught(comm.all_reduce, x)
    assert isinstance(error, hk.PeerFailure) and error.ranks == (0,), error
    assert "left" in str(error), error
    set_flag("over")
"""
    job = run_on_hosts(START + script, 1, backend)
    assert job.return_codes == [0, 0], job.stderr
    (left,), (error,) = job.notes("left"), job.notes("error")
    assert error["time_s"] - max(left["time_s"], error["entered_s"]) < 2


@BETWEEN_HOSTS
@ALGORITHMS
def test_deadline_names_the_missing_rank(run_on_hosts: Callable[..., Any], backend: str, algorithm: str) -> None:
    script = """
if RANK == 2:
    await_flags("over-0", "over-1", "over-3")
    # This rank may first detect that the others have left. gloo may still hold data of the others, so the first call
    # may succeed.
    error = caught(comm.all_reduce, x, **how) or caught(comm.all_reduce, x, **how)
    assert isinstance(error, (hk.Aborted, hk.PeerFailure)), error
else:
    error = caught(comm.all_reduce, x, timeout=1.0, **how)
    # The first rank that times out notifies the others, which wait for the same rank.
    assert isinstance(error, hk.CommTimeout) and error.ranks == (2,), (error, error.ranks)
    set_flag(f"over-{RANK}")
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


def test_mismatch_without_a_stall(run_on_hosts: Callable[..., Any]) -> None:
    """MPI reduces with two different operations without an error."""
    script = """
def run():
    for index in range(5000):
        comm.all_reduce(x[:100], "max" if (index, RANK) == (200, 1) else "sum")
        time.sleep(0.01 if index > 300 else 0)  # detected with a short delay
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
    raise RuntimeError("failure-of-1")
error = caught(comm.all_reduce, x)
assert isinstance(error, (hk.PeerFailure, hk.Aborted)), error
assert "1" in str(error), error
"""
    job = run_on_hosts(START + script, 1, backend)
    assert sorted(job.return_codes) == [0, 1], job.stderr
    assert "failure-of-1" in job.stderr


def test_init_again_after_finalize(run_on_hosts: Callable[..., Any]) -> None:
    script = """
for _ in range(3):
    comm.finalize()
    comm = hk.init(backends=[sys.argv[1]], timeout=30)
    comm.all_reduce(x)
"""
    job = run_on_hosts(START + script, 2, "gloo")
    assert job.return_codes == [0, 0], job.stderr


def test_forked_children_keep_no_connection(run_on_hosts: Callable[..., Any]) -> None:
    """A surviving worker process of a data loader does not hide the death of its rank."""
    script = """
if RANK == 1:
    child = os.fork()
    if child == 0:
        os.setsid()  # not in the process group that the launcher ends
        set_flag("forked")
        await_flags("over")
        os._exit(0)
    await_flags("forked")
    os.kill(os.getpid(), signal.SIGKILL)
await_flags("forked")
error = caught(comm.all_reduce, x)
set_flag("over")
assert isinstance(error, hk.PeerFailure) and "died" in str(error), error
"""
    job = run_on_hosts(START + script, 1, "gloo")
    assert 0 in job.return_codes, job.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_arrives_is_named(run_on_hosts: Callable[..., Any], rank: int) -> None:
    script = """
if RANK == int(sys.argv[1]):
    await_flags("over")
    sys.exit()
error = caught(hk.init, backends=["gloo"], timeout=2.0)
assert isinstance(error, hk.CommTimeout) and error.ranks == (int(sys.argv[1]),), error
set_flag("over")
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
    """gloo continues without any rank, including rank 0."""
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
    """A signal during any Python code of hocket: the operation continues, and the program gets the exception."""
    script = """
if RANK == 0:
    work = comm.all_reduce(x, async_op=True, **how)
    for i in range(10):
        watcher = threading.Timer(0.02 * (i + 1), os.kill, (os.getpid(), signal.SIGINT))
        error = caught(lambda: (watcher.start(), work.wait()))
        assert isinstance(error, KeyboardInterrupt), error
        watcher.join()
    set_flag("interrupted")
    work.wait()
else:
    await_flags("interrupted")
    comm.all_reduce(x, **how)
assert (x == SIZE * SIZE).all()
comm.barrier()
"""
    start = START.replace("timeout=30", f"timeout=30, progress={progress!r}")
    job = run_on_hosts(start + script, 1, backend, "native")
    assert job.return_codes == [0, 0], job.stderr
    assert len(job.notes("error")) == 10
