"""The text printed after a failed job: the first cause in full, every other failure in one line."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from hocket.boot.job_result import JobResult, RankOutcome

MOST_LINES = 20


def summarise(result: JobResult) -> str:
    """Return a description of the failures of a job; "" if it has no failures.

    Args:
        result: how the job ended.

    Returns:
        Lines with line ends: the reason for the end if it was not a rank, the traceback of the first cause, one line
        for each group of other ranks that ended in the same way, and the folder of records if it exists.
    """
    failures = result.failures
    if not failures and not result.timed_out and result.ended is None and not result.num_not_started:
        return ""
    lines = []
    if result.interrupted_by is not None:
        lines.append(f"hocket run: interrupted by {signal.Signals(result.interrupted_by).name}")
    if result.num_not_started:
        num_ranks = len(result.outcomes) + result.num_not_started
        lines.append(f"hocket run: {len(result.outcomes)} of {num_ranks} ranks had started")
    if result.ended is not None:
        lines.append(f"hocket run: {result.ended.reason}; ended")
    elif result.timed_out:
        lines.append(f"hocket run: timed out after {result.duration_s:.0f} s; ended")
    cause = result.first_cause
    if cause is not None:
        lines += _whole(result, cause)
    lines += _grouped({outcome.rank: _end(result, outcome) for outcome in failures if outcome is not cause})
    if Path(result.record_dir).is_dir():
        lines.append(f"records of the last operations: {result.record_dir}")
    return "".join(f"{line}\n" for line in lines)


def _whole(result: JobResult, cause: RankOutcome) -> list[str]:
    report = result.report_of(cause)
    if report is None or report.type_name == "KeyboardInterrupt":
        return _grouped({cause.rank: _end(result, cause)})
    return [f"rank {cause.rank} failed:", report.traceback.rstrip("\n")]


def _grouped(ends: Mapping[int, str]) -> list[str]:
    """Return one line for each group of ranks that ended in the same way, at most `MOST_LINES`."""
    ranks: dict[str, list[int]] = {}
    for rank, end in ends.items():
        ranks.setdefault(end, []).append(rank)
    lines = [f"{name_ranks(each)}{end if len(each) == 1 else _of_several(end)}" for end, each in ranks.items()]
    more = lines[MOST_LINES:]
    return lines[:MOST_LINES] + ([f"{len(more)} more lines about other ranks are left out"] if more else [])


def name_ranks(ranks: Sequence[int]) -> str:
    """Return a text such as "ranks 0, 3-5"; `ranks` must be ascending."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _of_several(end: str) -> str:
    return end if end.startswith(":") else end.replace(" was ", " were ").replace(" itself", " themselves")


def _end(result: JobResult, outcome: RankOutcome) -> str:
    """Return the text after the number of the rank."""
    report = result.report_of(outcome)
    if report is not None:
        if outcome is not result.first_cause and report.type_name == "KeyboardInterrupt":
            return f": {report.type_name}"  # its place does not matter
        place = f" ({report.where})" if report.where and not report.consequence else ""
        return f": {report.one_line}{place}"
    killed = outcome.signal_name
    if outcome.terminated_s is not None:
        how = killed or f"exit code {outcome.return_code}"
        return f" did not exit by itself and was terminated by the launcher ({how})"
    if killed is not None:
        return f" was killed by {killed}"
    return f" exited with code {outcome.return_code}"
