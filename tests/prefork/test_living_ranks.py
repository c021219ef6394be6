"""Ranks that live on: what a task leaves behind, how it ends, and what it takes is not lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

import hocket as hk
from hocket.session import spawner

from ..program import FORK_SERVER
from ..tier import sample
from .living_ranks import RankPool

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankPool]:
    pool = RankPool(FORK_SERVER)
    monkeypatch.setattr(spawner, "run_job", pool.run_job)
    yield pool
    pool.close()


def _run(code: str) -> int:
    """Run code on two ranks; return the pid of the first."""

    def task(comm: hk.Communicator) -> int:
        exec(code, {"comm": comm})
        return os.getpid()

    return int(hk.spawn(task, 2, timeout=30)[0])


LEFT = {
    "a variable": "import os; os.environ['LEFT'] = '1'",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "a process": "import subprocess; subprocess.Popen(['sleep', '99'])",
    "a handler": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "a timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 99)",
    "a limit": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))",
    "an affinity": "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    "a umask": "import os; os.umask(0o77)",
    "a recursion limit": "import sys; sys.setrecursionlimit(5000)",
    "a switch interval": "import sys; sys.setswitchinterval(0.1)",
    "no collector": "import gc; gc.disable()",
    "a hook": "import sys; sys.excepthook = lambda *_: None",
    "another stdout": "import io, sys; sys.stdout = io.StringIO()",
    "a hidden module": "import sys; sys.modules['mpi4py'] = None",
    "a builtin": "import builtins; builtins.left = 1",
    "errors of NumPy": "import numpy; numpy.seterr(over='raise')",
    "a format of NumPy": "import numpy; numpy.set_printoptions(precision=2)",
    "a filter of warnings": "import warnings; warnings.simplefilter('error')",
    "a constant": "import hocket.session.spawner as module; module.Patience = None",
    "a method": "import hocket.comm; hocket.comm.Communicator.barrier = None",
    "a registered reduction": "import hocket; hocket.register_reduction('left', lambda a, b: a)",
}


@pytest.mark.parametrize("what", sample(LEFT, 8, always=["a method"]))
def test_what_is_left_behind_ends_ranks(pool: RankPool, what: str) -> None:
    assert _run(LEFT[what]) != _run(""), pool.summary()


def test_ranks_go_on_after_a_task_that_leaves_nothing(pool: RankPool) -> None:
    assert _run("comm.barrier()") == _run("comm.barrier()")
    pool.close()
    assert "none" in pool.summary() and not pool.bad_ends


def test_ranks_that_crash_when_they_end_are_told(pool: RankPool) -> None:
    _run("import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGSEGV)")
    pool.close()
    (line,) = pool.bad_ends
    assert "139" in line and "test_living_ranks.py" in line


def test_ranks_of_a_test_that_is_interrupted_end(pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    pid = _run("")
    monkeypatch.setattr("tests.prefork.living_ranks.wait", interrupt)
    with pytest.raises(Interrupted):
        _run("while True: pass")
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_killed_ranks_took_is_counted(pool: RankPool) -> None:
    before_s = FORK_SERVER.cpu_s
    with pytest.raises(hk.CommTimeout):
        hk.spawn(lambda comm: _burn(), 2, timeout=1)
    assert FORK_SERVER.cpu_s - before_s > 0.2


def _burn() -> None:
    while True:
        pass


def test_random_numbers_differ_from_rank_to_rank_and_task_to_task(pool: RankPool) -> None:
    drawn = [number for _ in range(2) for number in hk.spawn(lambda comm: float(np.random.rand()), 3, timeout=30)]
    assert len(set(drawn)) == len(drawn) == 6
