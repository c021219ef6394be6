"""What a user reads after a job has failed: the first cause whole, every other failure in one line."""

from __future__ import annotations

import signal
from pathlib import Path

from hocket.boot.job_result import JobResult, RankOutcome


def summarise(result: JobResult) -> str:
    """Describe the failures of a job; empty when there are none.

    Args:
        result: how the job ended.

    Returns:
        Lines with their ends: what ended the job if that was not a rank, the traceback of the first cause, one line
        for each other failed rank, and where the records lie if there are any.
    """
    failures = result.failures
    if not failures and not result.timed_out:
        return ""
    lines = []
    if result.interrupted_by is not None:
        lines.append(f"hocket run: interrupted by {signal.Signals(result.interrupted_by).name}")
    if result.timed_out:
        lines.append(f"hocket run: not done after {result.duration_s:.0f} s, ended")
    cause = result.first_cause
    if cause is not None:
        lines += _whole(result, cause)
    lines += [_line(result, outcome) for outcome in failures if outcome is not cause]
    if Path(result.record_dir).is_dir():
        lines.append(f"records of the last operations: {result.record_dir}")
    return "".join(f"{line}\n" for line in lines)


def _whole(result: JobResult, cause: RankOutcome) -> list[str]:
    report = result.report_of(cause)
    if report is None or report.type_name == "KeyboardInterrupt":
        return [_line(result, cause)]
    return [f"rank {cause.rank} failed:", report.traceback.rstrip("\n")]


def _line(result: JobResult, outcome: RankOutcome) -> str:
    report = result.report_of(outcome)
    if report is not None:
        place = f" ({report.where})" if report.where and not report.consequence else ""
        return f"rank {outcome.rank}: {report.one_line}{place}"
    killed = outcome.signal_name
    if outcome.terminated_s is not None:
        how = killed or f"exit code {outcome.return_code}"
        return f"rank {outcome.rank} did not end by itself and was terminated by the launcher ({how})"
    if killed is not None:
        return f"rank {outcome.rank} was killed by {killed}"
    return f"rank {outcome.rank} exited with code {outcome.return_code}"
