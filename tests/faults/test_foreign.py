"""Faults during an operation of MPI, gloo or UCX: hocket detects them where the library would wait forever.

Also with two MPI libraries in each process: the fault happens in the first one, the other one is also initialised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..backends import ALL

pytestmark = pytest.mark.timeout(120)

BACKENDS = (*ALL[1:], "ucx beside mpi", "mpi beside mpi:mpich", "mpi:mpich beside mpi")
START = """
import importlib
BACKEND, *others = sys.argv[1].split(" beside ")
from hocket.backends import declarations
if "torch" in declarations()[BACKEND].requires.modules:
    importlib.import_module("torch").set_num_threads(1)
comm = hk.init(backends=["shm", BACKEND, *others], timeout=30, progress="caller")
x = np.ones(1 << 20, np.float32)  # larger than any eager message of a library
for other in others:
    comm.all_reduce(np.ones(10), backend=other)
comm.all_reduce(x, backend=BACKEND)
comm.barrier(backend="shm")
"""

DEATHS = {
    "before it takes part": """
if RANK == 1:
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "inside the operation": """
if RANK == 1:
    comm.all_reduce(x, backend=BACKEND, async_op=True)
    set_flag("first")  # the operation is agreed on only when the other rank issues it; this rank makes no progress now
    wait_until(lambda: os.path.exists("flag-issued"))
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "before it sends": """
if RANK == 1:
    await_flags("issued")
    note("dead")
    os.kill(os.getpid(), signal.SIGKILL)
""",
}

SURVIVOR = """
if RANK == 0:
    if sys.argv[2] == "inside":
        await_flags("first")
    call = (lambda: comm.irecv(x, 1, backend=BACKEND)) if sys.argv[2] == "message" else (
        lambda: comm.all_reduce(x, backend=BACKEND, async_op=True))
    work = call()
    for _ in range(1000):
        work.done or comm.records()
    set_flag("issued")
    error = caught(work.wait)
    assert isinstance(error, (hk.PeerFailure, hk.Aborted)), error
    later = caught(comm.all_reduce, x, backend="shm")
    assert isinstance(later, (hk.PeerFailure, hk.Aborted)), later
    note("over")
"""


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_death_is_detected_inside_a_library(run_job: Callable[..., Any], backend: str, death: str) -> None:
    kind = "message" if "sends" in death else "inside" if "inside" in death else "before"
    job = run_job(START + DEATHS[death] + SURVIVOR, 2, backend, kind, open_mpi="beside" in backend)
    assert len(job.notes("over")) == 1, job.stderr
    (dead,), (over,) = job.notes("dead"), job.notes("over")
    (first, _) = job.notes("error")
    assert first["type"] == "PeerFailure" and first["ranks"] == [1], first
    assert first["time_s"] - dead["time_s"] < 2, first
    assert over["time_s"] - dead["time_s"] < 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_deadline_holds_inside_a_library(run_job: Callable[..., Any], backend: str) -> None:
    script = """
if RANK == 0:
    error = caught(comm.all_reduce, x, backend=BACKEND, timeout=1.0)
    assert isinstance(error, hk.CommTimeout) and error.ranks == (1,), error
    assert isinstance(caught(comm.barrier), hk.Aborted)
    set_flag("over")
else:
    await_flags("over")
    assert isinstance(caught(comm.all_reduce, x, backend=BACKEND), hk.Aborted)
"""
    job = run_job(START + script, 2, backend, open_mpi="beside" in backend)
    assert job.return_code == 0, job.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupt_leaves_the_operation_pending(run_job: Callable[..., Any], backend: str) -> None:
    script = """
if RANK == 0:
    def interrupt():
        time.sleep(0.3)
        note("sent")
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    work = comm.all_reduce(x, backend=BACKEND, async_op=True)
    assert isinstance(caught(work.wait), KeyboardInterrupt) and not work.done
    set_flag("interrupted")
    work.wait()
else:
    await_flags("interrupted")
    comm.all_reduce(x, backend=BACKEND)
assert (x == SIZE**2).all()
comm.barrier(backend=BACKEND)
"""
    job = run_job(START + script, 2, backend, open_mpi="beside" in backend)
    assert job.return_code == 0, job.stderr
    assert job.notes("error")[0]["time_s"] - job.notes("sent")[0]["time_s"] < 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_mismatch_does_not_reach_the_library(run_job: Callable[..., Any], backend: str) -> None:
    script = """
for index in range(20):
    own = np.ones(1000 + (RANK if index % 3 == 0 else 0), np.float32)
    error = caught(comm.all_reduce, own, backend=BACKEND)
    assert (type(error) is hk.CollectiveMismatch) == (index % 3 == 0), error
    assert (own == (1 if error else SIZE)).all()
comm.all_reduce(x, backend=BACKEND)
assert (x == SIZE**2).all()
"""
    job = run_job(START + script, 2, backend, open_mpi="beside" in backend)
    assert job.return_code == 0, job.stderr
