"""Jobs that one shell has started are told apart: whom a rank waits for is a rank of its own job."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hocket.errors import RecorderError
from hocket.observe import JobView, JobWatcher, find_job, jobs
from hocket.observe.jobs import JobFinder, JobMember
from hocket.observe.processes import descendants_of

from ..load import scaled
from ..program import hocket
from .mpi_jobs import HOOKS, LAUNCHERS

pytestmark = pytest.mark.timeout(120)

# Rank 1 of the first job sleeps before collective 10, and both ranks of the second one before collective 3.
_HOCKET = """
import sys, time
import numpy as np, hocket as hk
from hocket import observe
job = int(sys.argv[1])
with hk.init() as comm:
    for number in range(1, 11):
        if (job, number) == (1, 3) or (job, number, comm.rank) == (0, 10, 1):
            with observe.region(f"asleep {job}"):
                time.sleep(100)
        comm.all_reduce(np.ones(4), timeout=100)
"""

# In the same places. The first job has two communicators with one name, each of two ranks: those of one of them wait.
_MPI = """
import sys, time
from mpi4py import MPI
world, job = MPI.COMM_WORLD, int(sys.argv[1])
pair = world.Split(world.rank // 2)
pair.Set_name("pair")
for number in range(10):
    if (job, number) == (1, 2) or (job, number, world.rank) == (0, 9, 1):
        time.sleep(100)
    pair.Barrier()
if world.rank in (2, 3):
    time.sleep(100)
"""


@contextmanager
def _shell(script: str) -> Iterator[int]:
    shell = subprocess.Popen(["sh", "-c", script + "\nwait"], start_new_session=True)
    try:
        yield shell.pid
    finally:
        for pid in reversed(descendants_of(shell.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shell.wait()


def _await(pid: int, is_reached: Callable[[JobView], bool]) -> JobView:
    watcher = JobWatcher(lambda: find_job(pid))
    deadline, view = time.monotonic() + scaled(60), None
    while time.monotonic() < deadline:
        try:
            view = watcher.look()
        except RecorderError:
            pass  # no recorder yet
        else:
            if is_reached(view):
                return view
        time.sleep(0.1)
    raise AssertionError(f"the jobs did not come so far: {view}")


def _waits(view: JobView) -> dict[tuple[int, int], tuple[int, ...]]:
    return {(rank.job, rank.owner.rank): rank.waits_for for rank in view.ranks if rank.owner.rank is not None}


def test_two_jobs_of_hocket_in_one_shell_script(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_HOCKET)
    run = f"{shlex.quote(sys.executable)} -m hocket.cli run -n 2 {shlex.quote(str(path))}"

    def is_reached(view: JobView) -> bool:
        doing = [(rank.doing.name, rank.doing.number) for rank in view.ranks if rank.doing]
        return doing.count(("all_reduce", 10)) == 1 and [name for name, _ in doing].count("asleep 1") == 2

    with _shell(f"{run} 0 & {run} 1 &") as pid:
        waits = _waits(_await(pid, is_reached))
        assert len(waits) == 4
        assert sorted(waits.values()) == [(), (), (), (1,)]
        (waiting,) = [job for (job, rank), late in waits.items() if late]
        screen = hocket("observe", "top", str(pid), "--once").stdout
        assert "1 rank waits for rank 1" in screen and f"job {waiting}" in screen


@pytest.mark.parametrize("library", LAUNCHERS)
def test_two_jobs_of_mpi_in_one_shell_script(library: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_MPI)
    (tmp_path / "recorders").mkdir()
    script = ""
    for job, num_ranks in ((0, 4), (1, 2)):
        settings = {
            "LD_PRELOAD": str(HOOKS), "HOCKET_OBSERVE": "comm", "HOCKET_RECORDER_FOLDER": str(tmp_path / "recorders"),
        }  # fmt: skip
        command = ["env", *(f"{name}={value}" for name, value in settings.items()), sys.executable, str(path), str(job)]
        (process,) = LAUNCHERS[library](command, num_ranks, library).processes
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in process.env.items())
        script += f"{variables} {shlex.join(process.argv)} &\n"

    def is_reached(view: JobView) -> bool:
        done = sorted(rank.activity.latest.get("pair", -1) for rank in view.ranks if rank.owner.rank is not None)
        return done == [1, 1, 8, 9, 9, 9]

    with _shell(script) as pid:
        waits = _waits(_await(pid, is_reached))
    (waiting,) = [job for (job, _), late in waits.items() if late]
    assert {rank: late for (job, rank), late in waits.items() if job == waiting} == {0: (1,), 1: (), 2: (), 3: ()}
    assert {rank: late for (job, rank), late in waits.items() if job != waiting} == {0: (), 1: ()}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Group processes of an invented tree."""

    def of(
        tree: Mapping[int, int],
        ranks: Mapping[int, int],
        environments: Mapping[int, Mapping[str, str]],
        size: int,
    ) -> list[int]:
        monkeypatch.setattr(jobs, "parents", lambda: dict(tree))
        monkeypatch.setattr(jobs, "environment_of", lambda pid: dict(environments.get(pid, {})))
        members = [JobMember(pid, 1, rank, size, pid, True) for pid, rank in ranks.items()]
        return JobFinder().group(members)

    return of


_Group = Callable[..., list[int]]
_ONE = {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
_TWO = {"MASTER_ADDR": "h", "MASTER_PORT": "2"}


def test_two_agents_of_one_job_on_this_host(group: _Group) -> None:
    tree = {10: 9, 11: 10, 12: 10, 20: 9, 21: 20, 22: 20, 9: 1}
    assert group(tree, {11: 0, 12: 1, 21: 2, 22: 3}, dict.fromkeys((11, 12, 21, 22), _ONE), 4) == [0, 0, 0, 0]


def test_two_jobs_whose_ranks_have_one_parent(group: _Group) -> None:
    tree = {11: 9, 12: 9, 21: 9, 22: 9, 9: 1}
    environments = {11: _ONE, 12: _ONE, 21: _TWO, 22: _TWO}
    assert group(tree, {11: 0, 21: 0, 12: 1, 22: 1}, environments, 2) == [0, 1, 0, 1]


def test_the_same_variables_in_two_jobs(group: _Group) -> None:
    tree = {10: 9, 11: 10, 12: 10, 20: 9, 21: 20, 22: 20, 9: 1}
    assert group(tree, {11: 0, 12: 1, 21: 0, 22: 1}, dict.fromkeys((11, 12, 21, 22), _ONE), 2) == [0, 0, 1, 1]


def test_a_child_of_a_rank_is_of_its_job(group: _Group) -> None:
    tree = {10: 9, 11: 10, 12: 10, 13: 11, 9: 1}  # 13 loads data for 11
    assert group(tree, {11: 0, 12: 1, 13: 0}, {}, 2) == [0, 0, 0]


def test_a_rank_that_has_ended_stays_in_its_job(group: _Group, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {10: 9, 11: 10, 20: 9, 21: 20, 22: 20, 9: 1}
    group(tree, {}, {}, 2)  # sets the tree
    members = [
        JobMember(12, 1, 1, 2, 10, False), JobMember(21, 1, 0, 2, 20, True), JobMember(22, 1, 1, 2, 20, True),
        JobMember(11, 1, 0, 2, 10, True),
    ]  # fmt: skip
    monkeypatch.setattr(jobs, "environment_of", lambda pid: _ONE if pid < 20 else _TWO)
    assert JobFinder().group(members) == [0, 1, 1, 0]
