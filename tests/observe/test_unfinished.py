"""Operations that have begun and not completed: which ranks are in them, which are not, and for how long."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import observe
from hocket.observe import ObservedRun, SavedProcess, hangs, operations_of
from hocket.observe.analysis.hangs import ENDED_WITH_JOB
from hocket.observe.analysis.unfinished import UnfinishedOperation, unfinished_operations
from hocket.trace import EVENT_STATES
from hocket.trace.region import HISTOGRAM_FIELDS

from ..load import scaled
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

_STUCK = """
import sys
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm", timeout=300) as comm:
    comm.all_reduce(np.ones(4))
    if comm.rank == 1:
        with observe.region("loading"):
            open(sys.argv[1]).close()  # until the test opens the other end
    comm.all_reduce(np.ones(1000))
"""


def _unfinished(run: ObservedRun, now_s: float | None = None) -> tuple[UnfinishedOperation, ...]:
    return unfinished_operations(run, operations_of(run), now_s)


def _rank(rank: int, ops: list[Op], size: int = 4, **options: object) -> FakeRank:
    communicators = {1: ("world", f"0-{size - 1}", rank)}
    return FakeRank(rank, ops, communicators=communicators, **options)  # type: ignore[arg-type]


def _completed(count: int) -> list[Op]:
    return [Op("all_reduce", number, number * MS, number * MS + 1) for number in range(count)]


def test_who_is_in_it_and_who_is_not() -> None:
    """Rank 1 waits since 10 ms, rank 0 since 30 ms; rank 2 is one behind, rank 3 has begun another one instead."""
    ranks = [
        _rank(0, [*_completed(5), Op("all_reduce", 5, 30 * MS, None, nbytes=64)]),
        _rank(1, [*_completed(5), Op("all_reduce", 5, 10 * MS, None)]),
        _rank(2, _completed(5), regions={"loading": [(7 * MS, 8 * MS)]}),
        _rank(3, [*_completed(5), Op("broadcast", 5, 20 * MS, None, peer=1)]),
    ]
    first, second = _unfinished(fabricate(ranks), 0.51)
    assert (first.op, first.communicator, first.number, first.nbytes) == ("all_reduce", "world", 5, 64)
    assert (first.entered, first.missing, first.unknown) == ("0-1", "2-3", "")
    assert (first.began_s, first.seconds) == (pytest.approx(0.01), pytest.approx(0.5))
    assert "rank 3: broadcast" in first.doing
    assert (second.op, second.peer, second.entered, second.missing) == ("broadcast", 1, "3", "0-2")


def test_ranks_that_have_completed_it_are_neither_in_it_nor_missing() -> None:
    ranks = [_rank(0, _completed(9), 2), _rank(1, [*_completed(5), Op("all_reduce", 5, 10 * MS, None)], 2)]
    (found,) = _unfinished(fabricate(ranks), 0.1)
    assert (found.entered, found.missing, found.unknown) == ("1", "", "")


def test_ranks_that_were_not_recorded_or_whose_events_were_lost_are_not_accused() -> None:
    """Of rank 2 nothing is recorded; of rank 1 older events than those of another communicator are lost."""
    other = Op("barrier", 400, 90 * MS, 91 * MS, comm=2)
    ranks = [
        _rank(0, [Op("all_reduce", 5, 10 * MS, None)], 3),
        FakeRank(1, [other], communicators={1: ("world", "0-2", 1), 2: ("pair", "1-2", 0)}),
    ]
    run = fabricate(ranks, world_size=3)
    assert [(each.missing, each.unknown) for each in _unfinished(run, 0.1)] == [("1", "2")]
    lost = replace(run.processes[1], lost={"operations": 300})
    run = replace(run, processes=(run.processes[0], lost))
    assert [(each.missing, each.unknown) for each in _unfinished(run, 0.1)] == [("1", "2")]  # it was new there
    totals = np.zeros(1, [*HISTOGRAM_FIELDS])
    totals["comm"], totals["count"] = 1, 5
    lost = replace(lost, snapshot=replace(lost.snapshot, histograms=totals))
    run = replace(run, processes=(run.processes[0], lost))
    assert [(each.missing, each.unknown) for each in _unfinished(run, 0.1)] == [("", "1-2")]


def test_messages_are_told_one_by_one_with_their_peer() -> None:
    ops = [Op("recv", 0, 10 * MS, None, peer=1, nbytes=32), Op("send", 1, 20 * MS, None, peer=3)]
    found = _unfinished(fabricate(_rank(rank, ops if rank == 0 else []) for rank in range(4)), 1.0)
    assert [(each.op, each.peer, each.nbytes, each.entered, each.missing) for each in found] == [
        ("recv", 1, 32, "0", ""), ("send", 3, 8, "0", ""),
    ]  # fmt: skip


def test_what_has_failed_never_completed_and_is_not_under_way() -> None:
    ranks = [_rank(0, [Op("barrier", 0, 10 * MS, 60 * MS, state="failed")], 2), _rank(1, [], 2)]
    (found,) = _unfinished(fabricate(ranks))
    assert (found.entered, found.missing, found.seconds) == ("0", "1", pytest.approx(0.05))
    assert _unfinished(fabricate(ranks), 1.0) == ()


def test_of_many_the_longest_are_told() -> None:
    ops = [Op("send", number, (2000 - number) * MS, None, peer=1) for number in range(1500)]
    found = _unfinished(fabricate([_rank(0, ops, 2), _rank(1, [], 2)]), 2.0)
    assert len(found) == 1000
    assert all(one.seconds >= other.seconds for one, other in itertools.pairwise(found))
    assert found[0].number == 1499


def test_a_rank_of_which_another_host_has_not_sent_all_is_not_accused() -> None:
    """Its events have not come: neither the first operation of a communicator nor a later one is known of it."""
    ranks = [_rank(0, [*_completed(3), Op("all_reduce", 3, 10 * MS, None)], 2), _rank(1, [], 2, host="other")]
    run = fabricate(ranks)
    assert [(each.missing, each.unknown) for each in _unfinished(run, 0.1)] == [("1", "")]
    run = replace(run, processes=(run.processes[0], replace(run.processes[1], is_partial=True)))
    assert [(each.missing, each.unknown) for each in _unfinished(run, 0.1)] == [("", "1")]


def _of_job(job: int, rank: int, ops: list[Op], communicators: dict[int, tuple[str, str, int]]) -> FakeRank:
    loading = {f"loading of job {job}": [(5 * MS, 0)]} if not ops else {}
    variables = {"MASTER_PORT": str(29500 + job)}
    return FakeRank(rank, ops, communicators=communicators, regions=loading, variables=variables, start_ns=job + rank)


def test_a_missing_rank_is_one_of_the_same_job() -> None:
    """Rank 1 of the second job has not used the communicator yet: it is not rank 1 of the first one."""
    own: list[dict[int, tuple[str, str, int]]] = [{2: ("own", str(rank), 0)} for rank in range(2)]
    world: dict[int, tuple[str, str, int]] = {1: ("world", "0-1", 0)}
    ranks = [
        _of_job(1, 0, [], own[0]), _of_job(1, 1, [], own[1]),
        _of_job(2, 0, [Op("all_reduce", 0, 10 * MS, None)], world), _of_job(2, 1, [], own[1]),
    ]  # fmt: skip
    run = fabricate(ranks, world_size=2)
    run = replace(run, processes=tuple(_with_open_regions(each) for each in run.processes))
    (found,) = _unfinished(run, 0.1)
    assert (found.missing, "loading of job 2" in found.doing, found.doing.count("job")) == ("1", True, 1)
    (hang,) = hangs(run, operations_of(run))
    assert [(each.rank, each.process) for each in hang.missing] == [(1, 3)]


def _with_open_regions(process: SavedProcess) -> SavedProcess:
    program = process.events["program"].copy()
    program["state"] = EVENT_STATES.index("started")
    return replace(process, events={**process.events, "program": program})


def _until_under_way(folder: Path, seconds: float) -> dict[str, Any]:
    """Return what the findings of a run that goes on say as soon as an operation has been under way for so long."""
    deadline = time.monotonic() + scaled(60)
    while time.monotonic() < deadline:
        done = hocket("observe", "findings", str(folder), "--json")
        found = json.loads(done.stdout) if done.returncode == 0 else {"under_way": []}
        if found["under_way"] and found["under_way"][0]["seconds"] > seconds:
            return found
    raise AssertionError(done.stdout + done.stderr)


@contextmanager
def _stuck_job(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded job of two ranks whose second one waits at the gate, in the folder "run-1"."""
    (folder / "stuck.py").write_text(_STUCK)
    os.mkfifo(folder / "gate")
    command = [sys.executable, "-m", "hocket.cli"]
    command += ["observe", "run", "--output", "run-1", "--", *command, "run", "-n", "2", "stuck.py", "gate"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True) as job:
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_findings_of_a_run_that_hangs_name_the_operation_and_the_missing_rank(tmp_path: Path) -> None:
    with _stuck_job(tmp_path) as job:
        found = _until_under_way(tmp_path / "run-1", 1.0)
        shown = hocket("observe", "findings", "run-1", "--fail", folder=tmp_path)
        with (tmp_path / "gate").open("w"):
            assert job.wait(scaled(60)) == 0
    (hanging,) = found["under_way"]
    assert (hanging["op"], hanging["nbytes"], hanging["entered"], hanging["missing"]) == ("all_reduce", 8000, "0", "1")
    assert "loading" in hanging["doing"]
    assert shown.returncode == 1 and "all_reduce" in shown.stdout and "rank 1" in shown.stdout.splitlines()[0]
    done = hocket("observe", "findings", "run-1", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["under_way"] == []
    assert observe.open_run(tmp_path / "run-1").description.exit_code == 0


@pytest.mark.timeout(180)
def test_ranks_that_the_launcher_ended_because_the_user_ended_the_job_were_not_killed(tmp_path: Path) -> None:
    with _stuck_job(tmp_path) as job:
        _until_under_way(tmp_path / "run-1", 1.0)
        job.send_signal(signal.SIGTERM)
        assert job.wait(scaled(60)) == 128 + signal.SIGTERM
    run = observe.open_run(tmp_path / "run-1")
    (hang,) = hangs(run, operations_of(run))
    assert [(each.rank, each.state) for each in hang.missing] == [(1, ENDED_WITH_JOB)]
    (found,) = [each for each in observe.findings(run) if each.process is not None]
    assert (found.kind, found.layer, "SIGTERM" in found.text) == ("hang", "program", True)
