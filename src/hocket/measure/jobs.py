"""Jobs: groups of processes with their own launcher. They are started once and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from hocket.errors import CommTimeout
from hocket.measure.machine import read_processes
from hocket.measure.wire import ADDRESS_VARIABLE, JOB_VARIABLE
from hocket.reserved_port import ReservedPort

_KILL_TIMEOUT_S = 10.0
_GRACE_S = 1.0


@dataclass(frozen=True)
class Process:
    """A command to start, with additional environment variables.

    Examples:
        >>> process = hk.measure.Process(("mpiexec", "-n", "2", "python", "rank.py"), {"OMP_NUM_THREADS": "1"})
        >>> process.argv[0]
        'mpiexec'
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """The ranks of one library: a launcher process that starts all of them, or one process per rank.

    Args:
        name: Name in error messages.
        num_ranks: Number of ranks that will connect.
        processes: Processes to start.
        port: Port that is reserved as their MASTER_PORT, if any.

    Examples:
        >>> launcher = hk.measure.Process(("mpiexec", "-n", "2", "python", "rank.py"))
        >>> job = hk.measure.Job("mpich", num_ranks=2, processes=(launcher,))
        >>> len(job.processes)
        1
    """

    name: str
    num_ranks: int
    processes: tuple[Process, ...]
    port: ReservedPort | None = None


def direct_job(name: str, argv: Sequence[str], num_ranks: int, env: Mapping[str, str] | None = None) -> Job:
    """Return a job without a launcher: one process per rank, with RANK, WORLD_SIZE, LOCAL_* and MASTER_* set.

    Examples:
        >>> job = hk.measure.direct_job("gloo", ["python", "rank.py"], num_ranks=2)
        >>> [process.env["RANK"] for process in job.processes]
        ['0', '1']
    """
    port = ReservedPort()
    world = {"WORLD_SIZE": f"{num_ranks}", "LOCAL_WORLD_SIZE": f"{num_ranks}"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port.number}"}
    processes = tuple(
        Process(tuple(argv), {**(env or {}), **world, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"})
        for rank in range(num_ranks)
    )
    return Job(name, num_ranks, processes, port)


class RunningJob:
    """A started job; owns its processes and their output.

    Args:
        job: The job to start.
        address: Address of the coordinator. It is unique, so it also marks the job's processes: every process with
            this address and the job's name in its environment is ended, even if a launcher has changed parents,
            groups and sessions.
    """

    def __init__(self, job: Job, address: str) -> None:
        self.job = job
        self._marks = {f"{ADDRESS_VARIABLE}={address}".encode(), f"{JOB_VARIABLE}={job.name}".encode()}
        # One file per process: the output of two that write at once would be mixed.
        self._outputs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for process in job.processes:
                env = {**os.environ, **process.env, ADDRESS_VARIABLE: address, JOB_VARIABLE: job.name}
                self._outputs.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed by close()
                self._processes.append(
                    subprocess.Popen(
                        process.argv,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=self._outputs[-1],
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        except BaseException:
            self.close()
            raise

    def exit_status(self) -> int | None:
        """Return the first exit status of a process that ended, negative for a signal; None while all run."""
        return next((status for process in self._processes if (status := process.poll()) is not None), None)

    def settle(self, timeout_s: float) -> None:
        """Wait until all processes have ended by themselves, at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return

    def output(self, max_chars: int = 4000) -> str:
        """Return the end of each process's stdout and stderr; output that is equal for all appears once."""
        ends = {number: end for number, each in enumerate(self._outputs) if (end := _end_of(each, max_chars))}
        if len(set(ends.values())) < 2:
            return next(iter(ends.values()), "")
        share = max_chars // len(ends)
        return "\n".join(f"[process {number}]\n{end[-share:]}" for number, end in ends.items())

    def finish(self, timeout_s: float) -> int | None:
        """Wait for the processes to end by themselves, then kill the remaining ones.

        Returns:
            The first exit status that is not 0; None if a process had to be killed.
        """
        deadline = time.monotonic() + timeout_s
        try:
            statuses = [process.wait(max(0.0, deadline - time.monotonic())) for process in self._processes]
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()
        return next((status for status in statuses if status), 0)

    def kill(self) -> None:
        """Kill every process of the job by process group, until none is left.

        Raises:
            CommTimeout: A killed process does not end, because it is stuck in the kernel.
        """
        own_group = os.getpgrp()
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while groups := set(self._groups()) - {own_group}:
            for group in groups:
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                    os.killpg(group, signal.SIGKILL)
            for process in self._processes:
                process.poll()  # a zombie has no environment: it is not found again
            if time.monotonic() > deadline:
                raise CommTimeout(f"job {self.job.name}: process groups {sorted(groups)} do not end when killed")
            time.sleep(0.01)  # until the kernel has removed those that are not our children

    def close(self) -> None:
        """End the remaining processes and release the output."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:  # launchers may end their ranks, which then remove their shared memory and files
            process.terminate()
        if running:
            self.settle(_GRACE_S)
        self.kill()
        for process in self._processes:
            process.wait(_KILL_TIMEOUT_S)
        for each in self._outputs:
            each.close()

    def _groups(self) -> Iterator[int]:
        """Yield the process groups of the job's live processes, found by the marks in their environment."""
        for pid, variables in read_processes("environ"):
            if self._marks <= {*variables.split(b"\0")}:
                with contextlib.suppress(ProcessLookupError):
                    yield os.getpgid(pid)


def _end_of(output: IO[bytes], max_chars: int) -> str:
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), max_chars, max(0, size - max_chars)).decode(errors="replace").strip()
