"""The end of a job: the outcome of each rank, and the failure that caused the others."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from hocket import errors
from hocket.boot.report import EXIT_EXCEPTION, FailureReport

EXIT_TIMED_OUT = 124  # as timeout(1)
EXIT_CANNOT_START = 1
EXIT_OUTPUT_LOST = 74  # EX_IOERR of sysexits.h


@dataclass(frozen=True)
class JobEnd:
    """Why the launcher ends a job, if the ranks' use of MPI is the reason.

    Args:
        reason: text for the user.
        exit_code: exit code of the job.
        rank: rank to kill at once, since its MPI_Abort must not return; the other ranks get SIGTERM first.
    """

    reason: str
    exit_code: int
    rank: int | None = None

    @classmethod
    def of_abort(cls, rank: int | None, code: int) -> JobEnd:
        """Return the end after MPI_Abort with a code, called by a rank, or on another host (None)."""
        caller = "a rank of another host" if rank is None else f"rank {rank}"
        return cls(f"{caller} called MPI_Abort({code})", code & 0xFF or EXIT_CANNOT_START, rank)


@dataclass(frozen=True)
class RankOutcome:
    """The end of one rank.

    Args:
        rank: number of the rank.
        return_code: its exit code, or minus the number of the signal that killed it.
        started_s: time of its start, in seconds since the epoch.
        ended_s: time when the launcher noticed its end.
        terminated_s: time when the launcher first sent it SIGTERM or SIGKILL; None if it did not.
    """

    rank: int
    return_code: int
    started_s: float
    ended_s: float
    terminated_s: float | None = None

    @property
    def failed(self) -> bool:
        return self.return_code != 0

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.started_s

    @property
    def exit_code(self) -> int:
        """Exit code as in a shell: 128 + the signal's number for a killed rank."""
        return 128 - self.return_code if self.return_code < 0 else self.return_code

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that killed the rank, or None."""
        if self.return_code >= 0:
            return None
        try:
            return signal.Signals(-self.return_code).name
        except ValueError:
            return f"signal {-self.return_code}"  # real-time signals have no name


@dataclass(frozen=True)
class JobResult:
    """The end of all ranks.

    Args:
        outcomes: one for each started rank, in rank order.
        reports: exceptions reported by ranks, by rank.
        duration_s: time from the first start to the last end.
        record_dir: folder where failing ranks write the records of their last operations.
        interrupted_by: number of the first signal that the launcher received and passed on, or None.
        timed_out: whether the job exceeded its time limit.
        keep_going: whether ranks continue after failures of others; then one successful rank is enough.
        num_not_started: number of ranks not started because another had failed or a signal had arrived.
        ended: why the launcher ended the job, if the ranks' use of MPI was the reason.
        is_output_lost: whether some output of the ranks could not be written, for example to a full disk.
    """

    outcomes: tuple[RankOutcome, ...]
    reports: Mapping[int, FailureReport]
    duration_s: float
    record_dir: str
    interrupted_by: int | None = None
    timed_out: bool = False
    keep_going: bool = False
    num_not_started: int = 0
    ended: JobEnd | None = None
    is_output_lost: bool = False

    @property
    def failures(self) -> list[RankOutcome]:
        return [outcome for outcome in self.outcomes if outcome.failed]

    @property
    def exit_code(self) -> int:
        """Exit code of the ranks; 74 if they succeeded but some of their output was lost."""
        return self.ranks_exit_code or (EXIT_OUTPUT_LOST if self.is_output_lost else 0)

    @property
    def ranks_exit_code(self) -> int:
        """0 if all ranks, or one rank of a job that keeps going, exited with 0; 124 after a timeout; 128 + the signal's
        number after a signal; else the exit code of the first cause."""
        if self.interrupted_by is not None and (self.failures or self.num_not_started):
            return 128 + self.interrupted_by
        if self.timed_out:
            return EXIT_TIMED_OUT
        if self.ended is not None:
            return self.ended.exit_code
        if not self.failures or (self.keep_going and len(self.failures) < len(self.outcomes)):
            return 0
        cause = self.first_cause
        if cause is not None and cause.terminated_s is not None and self.report_of(cause) is not None:
            return EXIT_EXCEPTION  # it was terminated while it waited for others, as in MPI_Finalize
        return cause.exit_code if cause is not None else self.failures[0].exit_code

    @property
    def first_cause(self) -> RankOutcome | None:
        """The failure that most likely caused the others; None if the launcher terminated all ranks.

        It is the earliest failure that is not a consequence of another one; if all are, the earliest.
        """
        own = [outcome for outcome in self.failures if self.report_of(outcome) or outcome.terminated_s is None]
        return min(own, key=self._order, default=None)

    @property
    def is_of_program(self) -> bool:
        """Whether the first cause is an exception of the program, not of hocket."""
        report = None if self.first_cause is None else self.report_of(self.first_cause)
        return report is not None and not report.consequence and not hasattr(errors, report.type_name)

    def report_of(self, outcome: RankOutcome) -> FailureReport | None:
        """Return the rank's report, unless its exception came after the launcher's SIGTERM and was caused by it."""
        report = self.reports.get(outcome.rank)
        if report is None or (outcome.terminated_s is not None and report.time_s > outcome.terminated_s):
            return None
        return report

    def _order(self, outcome: RankOutcome) -> tuple[bool, float]:
        report = self.report_of(outcome)
        if report is None:
            return False, outcome.ended_s
        interrupted = self.interrupted_by is not None and report.type_name == "KeyboardInterrupt"
        return report.consequence or interrupted, report.time_s
