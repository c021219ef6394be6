"""The first cause among failures, the exit code that follows from it, and the printed lines."""

from __future__ import annotations

import pytest

from hocket.boot.job_result import JobResult, RankOutcome
from hocket.boot.report import FailureReport
from hocket.boot.summary import summarise

pytestmark = pytest.mark.timeout(30)


def outcome(rank: int, return_code: int, ended_s: float, terminated_s: float | None = None) -> RankOutcome:
    return RankOutcome(rank, return_code, started_s=0.0, ended_s=ended_s, terminated_s=terminated_s)


def report(rank: int, type_name: str, time_s: float, consequence: bool = False) -> FailureReport:
    return FailureReport(rank, type_name, "text", "a.py:1 in f", f"Traceback {rank}\n", time_s, consequence)


def job(*outcomes: RankOutcome, reports: tuple[FailureReport, ...] = (), **ended: object) -> JobResult:
    by_rank = {one.rank: one for one in reports}
    return JobResult(outcomes, by_rank, duration_s=1.0, record_dir="/nowhere", **ended)  # type: ignore[arg-type]


CASES = {
    "all well": (job(outcome(0, 0, 1.0)), 0, ""),
    "all well, on a full disk": (job(outcome(0, 0, 1.0), is_output_lost=True), 74, ""),
    "a failure, on a full disk": (
        job(outcome(0, 3, 1.0), is_output_lost=True),
        3,
        "rank 0 exited with code 3\n",
    ),
    "the cause ends after its consequence": (
        job(
            outcome(0, 1, 1.0),
            outcome(1, 1, 2.0),
            reports=(report(0, "PeerFailure", 0.9, consequence=True), report(1, "ValueError", 0.5)),
        ),
        1,
        "rank 1 failed:\nTraceback 1\nrank 0: PeerFailure: text\n",
    ),
    "a killed rank": (
        job(outcome(0, 1, 1.0), outcome(1, -9, 2.0), reports=(report(0, "Aborted", 0.9, consequence=True),)),
        137,
        "rank 1 was killed by SIGKILL\nrank 0: Aborted: text\n",
    ),
    "only consequences": (
        job(outcome(0, 1, 6.0), outcome(1, -9, 8.0, 5.0), reports=(report(0, "CommTimeout", 1.0, consequence=True),)),
        1,
        "rank 0 failed:\nTraceback 0\nrank 1 did not exit by itself and was terminated by the launcher (SIGKILL)\n",
    ),
    "an exception that came from the launcher's SIGTERM": (
        job(
            outcome(0, 1, 6.0),
            outcome(1, 1, 8.0, terminated_s=5.0),
            reports=(report(0, "CommTimeout", 1.0, consequence=True), report(1, "Stopped", 5.5)),
        ),
        1,
        "rank 0 failed:\nTraceback 0\nrank 1 did not exit by itself and was terminated by the launcher (exit code 1)\n",
    ),
    "an exception whose rank then hung": (
        job(
            outcome(0, 1, 6.0),
            outcome(1, -9, 8.0, terminated_s=5.0),
            reports=(report(0, "CommTimeout", 4.0, consequence=True), report(1, "ValueError", 1.0)),
        ),
        1,
        "rank 1 failed:\nTraceback 1\nrank 0: CommTimeout: text\n",
    ),
    "an exit code": (
        job(outcome(0, 3, 1.0), outcome(1, 4, 2.0)),
        3,
        "rank 0 exited with code 3\nrank 1 exited with code 4\n",
    ),
    "interrupted": (
        job(outcome(0, 130, 1.0), outcome(1, 0, 1.0), reports=(report(0, "KeyboardInterrupt", 1.0),), interrupted_by=2),
        130,
        "hocket run: interrupted by SIGINT\nrank 0: KeyboardInterrupt: text (a.py:1 in f)\n",
    ),
    "terminated": (
        job(outcome(0, -15, 1.0, 0.5), interrupted_by=15),
        143,
        "hocket run: interrupted by SIGTERM\n"
        "rank 0 did not exit by itself and was terminated by the launcher (SIGTERM)\n",
    ),
    "timed out": (
        job(outcome(0, -15, 1.0, 0.5), timed_out=True),
        124,
        "hocket run: timed out after 1 s; ended\n"
        "rank 0 did not exit by itself and was terminated by the launcher (SIGTERM)\n",
    ),
    "a real-time signal": (job(outcome(0, -40, 1.0)), 168, "rank 0 was killed by signal 40\n"),
}


@pytest.mark.parametrize(("result", "exit_code", "text"), CASES.values(), ids=CASES.keys())
def test_result(result: JobResult, exit_code: int, text: str) -> None:
    assert result.exit_code == exit_code
    assert summarise(result) == text
