"""Jobs of Slurm and PBS: what the environment of a process says, and what the queue says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from select import select
from shutil import which
from time import monotonic

from hocket.errors import RecorderError

_DEADLINE_S = 5.0
_MOST_NBYTES = 1 << 20
_MOST_TEXT = 4096


@dataclass(frozen=True)
class BatchTask:
    """A process's place in a job of a batch system, from its environment.

    Args:
        system: "Slurm" or "PBS".
        job: id of the job.
        step: number of the step of Slurm (one ``srun``); None: PBS, or the batch script itself.
        rank: number of the task in the step; None: PBS, or unknown.
        num_tasks: number of tasks of the step; None: PBS, or unknown.
        nodes: hosts of the job, such as "node[1-4]" or "node1,node2"; None: unknown.

    Examples:
        >>> from hocket import observe
        >>> observe.BatchTask("Slurm", "4711", "0", 3, 4, "node[1-2]").rank
        3
    """

    system: str
    job: str
    step: str | None
    rank: int | None
    num_tasks: int | None
    nodes: str | None


@dataclass(frozen=True)
class QueuedJob:
    """A job as its batch system sees it. All texts are as the system writes them; None: it says nothing.

    Args:
        name: of the job.
        state: such as "RUNNING" (Slurm) or "R" (PBS).
        queue: partition or queue.
        nodes: hosts that it has.
        began: when it started.
        time_limit: how long it may run.

    Examples:
        >>> from hocket import observe
        >>> observe.QueuedJob("train", "RUNNING", "gpu", "node[1-2]", None, "1-00:00:00").state
        'RUNNING'
    """

    name: str | None
    state: str | None
    queue: str | None
    nodes: str | None
    began: str | None
    time_limit: str | None


def task_in(environment: Mapping[str, str]) -> BatchTask | None:
    """Return the task that an environment describes; None: none.

    Args:
        environment: of a process, or `RecorderSnapshot.variables` of its recorder.
    """
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    if job:
        return BatchTask(
            system="Slurm",
            job=job[:_MOST_TEXT],
            step=_text(environment.get("SLURM_STEP_ID")),
            rank=_count(environment.get("SLURM_PROCID")),
            num_tasks=_count(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")),
            nodes=_text(environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")),
        )
    job = environment.get("PBS_JOBID")
    if job:
        return BatchTask("PBS", job[:_MOST_TEXT], None, None, None, _nodes_of_file(environment.get("PBS_NODEFILE")))
    return None


def queued_job(task: BatchTask) -> QueuedJob:
    """Ask the batch system about a job.

    Args:
        task: a task of it.

    Raises:
        RecorderError: the system's command is missing, fails, does not answer within 5 s, or says something else.

    Examples:
        >>> from hocket import observe
        >>> from hocket.errors import RecorderError
        >>> try:
        ...     job = observe.queued_job(observe.BatchTask("Slurm", "1", None, None, None, None))
        ... except RecorderError:
        ...     print("unavailable")
        unavailable
    """
    if task.system == "Slurm":
        return parse_scontrol(_ask(["scontrol", "--oneliner", "show", "job", task.job]), task.job)
    return parse_qstat(_ask(["qstat", "-f", "-F", "json", task.job]), task.job)


def parse_scontrol(text: str, job: str) -> QueuedJob:
    """Return the job in the output of ``scontrol --oneliner show job ID``.

    Raises:
        RecorderError: `text` is not such output, or is of another job.
    """
    values: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals and value not in ("", "(null)"):
            values.setdefault(name, value)
    # A job of an array has a number of its own beside that of its array.
    if job not in (values.get("JobId"), values.get("ArrayJobId")):
        raise RecorderError(f"scontrol: JobId={job} is expected in {text[:120]!r}")
    return QueuedJob(
        name=_text(values.get("JobName")),
        state=_text(values.get("JobState")),
        queue=_text(values.get("Partition")),
        nodes=_text(values.get("NodeList")),
        began=_text(values.get("StartTime")),
        time_limit=_text(values.get("TimeLimit")),
    )


def parse_qstat(text: str, job: str) -> QueuedJob:
    """Return the job in the output of ``qstat -f -F json ID``.

    Raises:
        RecorderError: `text` is not such output, or is of another job.
    """
    try:
        found = json.loads(text)["Jobs"][job]
        limits = found.get("Resource_List", {})
        values = {name: found.get(name) for name in ("Job_Name", "job_state", "queue", "exec_host", "stime")}
        values["walltime"] = limits.get("walltime")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RecorderError(f'qstat: {{"Jobs": {{"{job}": ...}}}} is expected, not {text[:120]!r}') from None
    texts = {name: _text(value) if isinstance(value, str) else None for name, value in values.items()}
    return QueuedJob(
        name=texts["Job_Name"],
        state=texts["job_state"],
        queue=texts["queue"],
        nodes=texts["exec_host"],
        began=texts["stime"],
        time_limit=texts["walltime"],
    )


def _ask(command: list[str]) -> str:
    program = which(command[0])
    if program is None:
        raise RecorderError(f"there is no command {command[0]}")
    try:
        process = subprocess.Popen(
            [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise RecorderError(f"{program} cannot be started: {error.strerror}") from None
    with process:
        try:
            printed, said = _read_all(process, command[0])
        finally:
            process.kill()
    if process.returncode != 0:
        raise RecorderError(f"{' '.join(command)} ended with {process.returncode}: {said[:200] or 'it said nothing'}")
    return printed


def _read_all(process: subprocess.Popen[bytes], name: str) -> tuple[str, str]:
    """What a process writes to its standard output and error until it ends, within the deadline."""
    assert process.stdout is not None and process.stderr is not None
    deadline = monotonic() + _DEADLINE_S
    texts = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    is_open = set(texts)
    try:
        while is_open:
            ready, _, _ = select(is_open, [], [], max(deadline - monotonic(), 0))
            if not ready:
                raise subprocess.TimeoutExpired(name, _DEADLINE_S)
            for fd in ready:
                part = os.read(fd, 1 << 16)
                texts[fd] += part
                if not part:
                    is_open.remove(fd)
                if len(texts[fd]) > _MOST_NBYTES:
                    raise RecorderError(f"{name} wrote more than {_MOST_NBYTES} bytes")
        process.wait(max(deadline - monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise RecorderError(f"{name} did not answer within {_DEADLINE_S:.0f} s") from None
    printed, said = (text.decode(errors="replace").strip() for text in texts.values())
    return printed, said


def _nodes_of_file(name: str | None) -> str | None:
    """The hosts in a file of PBS: one a line, each as often as it has tasks."""
    if not name:
        return None
    try:
        with Path(name).open("rb") as file:
            lines = file.read(_MOST_NBYTES).decode(errors="replace").split()
    except OSError:
        return None
    return _text(",".join(dict.fromkeys(lines)))


def _text(value: str | None) -> str | None:
    return value[:_MOST_TEXT] if value else None


def _count(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdecimal() and len(value) < 10 else None
