"""Findings: of causes that were put in, and none where nothing was."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hocket.observe import ObservedRun, RunFinding, findings, hangs, open_run, operations_of, record_run
from hocket.observe.analysis.hangs import ENDED_WITH_JOB

from ..tier import is_full
from .fabricated_run import MS, FakeRank, Op, fabricate

pytestmark = pytest.mark.timeout(180)


def _of_program(found: tuple[RunFinding, ...]) -> list[RunFinding]:
    return [each for each in found if each.kind != "foreign load"]


def _random_run(seed: int) -> ObservedRun:
    """Four ranks whose work differs by chance, 60 steps."""
    draw = np.random.default_rng(seed)
    arrivals = np.arange(60)[:, None] * 20 * MS + draw.exponential(3 * MS, (60, 4)).astype(np.int64)
    ends = (arrivals.max(1) + MS).tolist()
    return fabricate(
        FakeRank(rank, [Op("all_reduce", number, int(arrivals[number, rank]), ends[number]) for number in range(60)])
        for rank in range(4)
    )


def test_lateness_by_chance_is_no_finding() -> None:
    assert [seed for seed in range(200 if is_full() else 50) if findings(_random_run(seed))] == []


def test_a_tiny_delay_as_a_rule_and_a_long_one_by_chance_are_no_finding() -> None:
    """One rank comes 2 us later each time; twice it was interrupted for a while."""
    ops: list[list[Op]] = [[], [], []]
    now = 0
    for step in range(40):
        arrivals = [now + 100_000 + (2000 if rank == 0 else 0) for rank in range(3)]
        arrivals[0] += 20 * MS if step in (11, 12) else 0
        for rank in range(3):
            ops[rank].append(Op("all_reduce", step, arrivals[rank], max(arrivals) + 10_000))
        now = max(arrivals) + 10_000
    assert findings(fabricate(FakeRank(rank, each) for rank, each in enumerate(ops))) == ()


def _hanging(state: str, *, is_other: bool = False) -> ObservedRun:
    """Ranks 0 and 1 wait in operation 5, to which rank 2 does not come."""
    samples = [(0, "running", 0.0, 0.0), (4000 * MS, "running", 0.1, 0.0)]
    waiting = [
        FakeRank(rank, [*(Op("all_reduce", number, number * MS, number * MS + 1) for number in range(5)),
                        Op("all_reduce", 5, 10 * MS, None)], samples=samples)
        for rank in range(2)
    ]  # fmt: skip
    ops = [Op("all_reduce", number, number * MS, number * MS + 1) for number in range(5)]
    if is_other:
        ops.append(Op("broadcast", 5, 10 * MS, None, peer=0))
    end = {"stopped": "stopped", "was killed": "ended", "running": "running", "ended": "ended"}[state]
    late = FakeRank(
        2, ops, samples=[*samples[:1], (4000 * MS, end, 0.1, 0.0)], has_ended=state == "ended",
    )  # fmt: skip
    return fabricate([*waiting, late])


@pytest.mark.parametrize("state", ["stopped", "was killed", "running", "ended"])
def test_a_rank_that_does_not_come(state: str) -> None:
    run = _hanging(state)
    (hang,) = hangs(run, operations_of(run))
    assert (hang.kind, hang.number, hang.waiting, hang.nbytes) == ("all_reduce", 5, (0, 1), 8)
    assert hang.waited_s == pytest.approx(3.99)
    (missing,) = hang.missing
    assert (missing.rank, missing.process, missing.state, missing.last_number) == (2, 2, state, 4)
    (found,) = findings(run)
    assert (found.kind, found.process) == ("death" if state == "was killed" else "hang", 2)
    assert found.layer == ("not running" if state in ("stopped", "was killed") else "program")
    assert found.seconds == pytest.approx(2 * 3.99) and found.is_certain


@pytest.mark.parametrize("exit_code", [143, -15, 130, -1, 0, 1, 137, -9])
@pytest.mark.parametrize(("late_s", "end"), [(4.0, "killed"), (0.5, "killed"), (4.0, "failed"), (4.0, "ended")])
def test_a_rank_that_ended_with_the_job(exit_code: int, late_s: float, end: str) -> None:
    """Ranks 0 and 1 end after 4 s, killed or by themselves, or it fails; rank 2 was seen until `late_s`."""
    waiting = [
        FakeRank(
            rank, [Op("all_reduce", 0, 10 * MS, 3900 * MS if end == "failed" else None,
                      state="failed" if end == "failed" else "")],
            samples=[(0, "running", 0.0, 0.0), (4000 * MS, "ended", 0.1, 0.0)], has_ended=end == "ended",
        )
        for rank in range(2)
    ]  # fmt: skip
    late = FakeRank(
        2, samples=[(0, "running", 0.0, 0.0), (round(late_s * 1000) * MS, "ended", 0.1, 0.0)], has_ended=False,
        regions={"loading": [(MS, 2 * MS)]}
    )  # fmt: skip
    run = fabricate([*waiting, late])
    run = replace(run, description=replace(run.description, exit_code=exit_code))
    (hang,) = hangs(run, operations_of(run))
    is_with_the_job = exit_code in (143, -15, 130, -1) and late_s == 4.0 and end == "killed"
    assert [each.state for each in hang.missing] == [ENDED_WITH_JOB if is_with_the_job else "was killed"]
    (found,) = findings(run)
    assert (found.layer == "program") == is_with_the_job


def test_ranks_that_call_different_operations() -> None:
    run = _hanging("running", is_other=True)
    (hang,) = hangs(run, operations_of(run))
    assert [(each.rank, each.other_kind) for each in hang.missing] == [(2, "broadcast")]


def test_a_member_that_was_not_recorded_is_missing() -> None:
    ranks = [FakeRank(rank, [Op("barrier", 0, MS, None)], communicators={1: ("world", "0-2", rank)}) for rank in (0, 2)]
    run = fabricate(ranks, world_size=3)
    (hang,) = hangs(run, operations_of(run))
    assert [(each.rank, each.process, each.state) for each in hang.missing] == [(1, None, "not recorded")]


def test_a_job_that_was_killed_as_a_whole_is_no_finding() -> None:
    samples = [(0, "running", 0.0, 0.0), (20 * MS, "ended", 0.1, 0.0)]
    ranks = [
        FakeRank(rank, [Op("barrier", number, number * MS, None if number == 7 - rank else number * MS + 1)
                        for number in range(8 - rank)], samples=samples, has_ended=False)
        for rank in range(2)
    ]  # fmt: skip
    assert findings(fabricate(ranks)) == ()


# What each cause must be found as: kind and layer. Those that depend on how fast the machine computes and writes are in
# benchmarks/findings.py.
_CAUSES = {
    "none": None,
    "sleep": ("straggler", "not running"),
    "killed": ("death", "not running"),
    "frozen": ("hang", "not running"),
}
_PROGRAM = """
import os, signal, sys, time
import numpy as np
import hocket as hk
cause, culprit = sys.argv[1], int(sys.argv[2])
comm = hk.init(timeout=5)
try:
    for step in range(40):
        if comm.rank == culprit:
            if cause == "sleep":
                time.sleep(0.1)
            elif cause in ("killed", "frozen") and step == 30:
                os.kill(os.getpid(), signal.SIGKILL if cause == "killed" else signal.SIGSTOP)
        comm.all_reduce(np.ones(1000, np.float32))
    comm.finalize()
except hk.HocketError:
    os._exit(3)
"""


@pytest.mark.parametrize("culprit", range(3) if is_full() else [1])
@pytest.mark.parametrize("cause", _CAUSES if is_full() else [cause for cause in _CAUSES if cause != "none"])
def test_causes_that_were_put_in(cause: str, culprit: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "3", str(script), cause, str(culprit)]
    record_run(launch, tmp_path / "run", interval_s=0.1)
    run = open_run(tmp_path / "run")
    found = _of_program(findings(run))
    ranks = [None if each.process is None else run.processes[each.process].snapshot.owner.rank for each in found]
    verdicts = [(each.kind, each.layer, rank) for each, rank in zip(found, ranks, strict=True)]
    expected = _CAUSES[cause]
    assert verdicts[:1] == ([] if expected is None else [(*expected, culprit)]), [each.text for each in found]
