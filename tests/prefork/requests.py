"""What the fork server is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hocket.boot.supervisor import Patience


@dataclass(frozen=True)
class JobRequest:
    """Ranks, as of `hocket.boot.launcher.run_job`; answered with a `JobResult`.

    Args:
        environment, folder: of the launcher.
        command: that `hocket.boot.rank_process.runner_command` made.
        num_ranks, patience: as of `run_job`.
    """

    environment: Mapping[str, str]
    folder: str
    command: Sequence[str]
    num_ranks: int
    patience: Patience


@dataclass(frozen=True)
class ProgramRequest:
    """A Python program; answered with its pid, and then its exit code, minus the signal's number if it was killed.

    Args:
        environment, folder: of the program.
        arguments: ``["script.py", *args]`` or ``["-m", "module", *args]``.
    """

    environment: Mapping[str, str]
    folder: str
    arguments: Sequence[str]


@dataclass(frozen=True)
class RankTask:
    """What a living rank is to run next.

    Args:
        folder: of the task of `hocket.spawn`.
        working_folder, record_dir: of the rank.
    """

    folder: str
    working_folder: str
    record_dir: str


@dataclass(frozen=True)
class TaskEnd:
    """What a living rank says when its task is over.

    Args:
        cpu_s: seconds of CPU that it took.
        has_torch: whether torch is imported by now.
        remains: what is left of the task that the next one could see, in a word; empty if nothing is.
    """

    cpu_s: float
    has_torch: bool
    remains: str


Request = JobRequest | ProgramRequest
