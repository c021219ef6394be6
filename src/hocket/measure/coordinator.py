"""Run contenders in other jobs: one job runs at a time, the others sleep in a read.

The ranks of each job connect, send the names of their contenders, and then answer one request at a time:

    rank -> coordinator   {"job", "rank", "pid", "contenders": [[case, name], ...]}
    coordinator -> rank   {"do": "run", "case", "name", "iterations"} | {"do": "compute"} | {"do": "exit"}
                          {"do": "windows", "case", "name", "start_s", "period_s", "count"}
                          or another action of its program (`serve`)
    rank -> coordinator   {"seconds"}, or the reply of its program | {"error": traceback}
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from hocket.errors import CommTimeout, InvalidArgument, LaunchError
from hocket.measure.contender import Key
from hocket.measure.jobs import Job, RunningJob
from hocket.measure.machine import usable_cpus
from hocket.measure.windows import first_window_s
from hocket.measure.wire import Line, Message

_DISMISSAL_S = 2.0  # for a rank that is in the middle of a sample
_CHECK_EVERY_S = 0.2  # how often a wait checks that the job is alive
_SETTLE_S = 2.0  # for a launcher to forward the output of a failed rank
_Source = TypeVar("_Source", socket.socket, Line)


class Coordinator:
    """The `Runner` of contenders in other processes; a context manager that ends its jobs on exit.

    Args:
        jobs: One job per library, all with the same number of ranks and with different contenders.
        start_timeout_s: Seconds until all ranks of a job have connected (they import, set up and check before).
        run_timeout_s: Seconds for one sample.

    Attributes:
        job_of: The name of the job of each contender, in the order of the jobs.

    Raises:
        InvalidArgument: No job, jobs of different sizes, or a contender of two jobs.
        LaunchError: A job could not be started, died, or failed; names the job and shows the end of its output.
        CommTimeout: A job did not answer in time; names the job and shows the end of its output.

    Examples:
        >>> import sys
        >>> from pathlib import Path
        >>> program = '''
        ... from hocket.measure import Contender, serve
        ... serve([Contender.of_call("16 B", "sum", lambda: sum([1, 2]))], rank=0, barrier=lambda: None)
        ... '''
        >>> _ = Path("rank.py").write_text(program)
        >>> job = hk.measure.direct_job("python", [sys.executable, "rank.py"], num_ranks=1)
        >>> with hk.measure.Coordinator([job]) as coordinator:
        ...     print(coordinator.contenders, len(coordinator.run(coordinator.contenders[0], 10)))
        (Key(case='16 B', name='sum'),) 1
    """

    def __init__(self, jobs: Sequence[Job], *, start_timeout_s: float = 120.0, run_timeout_s: float = 120.0) -> None:
        if len({job.name for job in jobs}) != len(jobs) or len({job.num_ranks for job in jobs}) != 1:
            given = ", ".join(f"{job.name} ({job.num_ranks} ranks)" for job in jobs) or "no job"
            raise InvalidArgument(f"jobs must have different names and the same number of ranks, not {given}")
        self._run_timeout_s = run_timeout_s
        self.num_ranks = jobs[0].num_ranks
        self.num_cpus = usable_cpus()  # the jobs inherit them
        self.pids = (os.getpid(),)  # the jobs are its descendants
        self._running: dict[str, RunningJob] = {}
        self._lines: dict[str, dict[int, Line]] = {job.name: {} for job in jobs}
        self.job_of: dict[Key, str] = {}
        # Not an abstract socket: ranks may run in another network namespace.
        self._folder = tempfile.TemporaryDirectory(prefix="hocket-measure-")
        address = f"{self._folder.name}/socket"
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(address)
            self._listener.listen(len(jobs) * self.num_ranks)
            for job in jobs:  # one after the other: two MPIs that start at once compete for the cores
                self._start(job, address, time.monotonic() + start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def contenders(self) -> tuple[Key, ...]:
        """All contenders of all jobs, in the order of the jobs."""
        return tuple(self.job_of)

    def run(self, contender: Key, iterations: int) -> list[float]:
        """Return the seconds of each rank of the contender's job."""
        request = {"do": "run", "case": contender.case, "name": contender.name, "iterations": iterations}
        return [float(each["seconds"]) for each in self.ask(self.job_of[contender], request)]

    def run_windows(self, contender: Key, count: int, period_s: float) -> list[list[float]]:
        """Return the seconds of each call on each rank of the contender's job, by this host's monotonic clock."""
        request = {"do": "windows", "case": contender.case, "name": contender.name, "count": count}
        request |= {"period_s": period_s, "start_s": first_window_s(time.perf_counter(), period_s, count)}
        return [each["seconds"] for each in self.ask(self.job_of[contender], request)]

    def compute(self, ranks: tuple[int, ...]) -> list[float]:
        """Return the seconds of the compute kernel on `ranks` of the first job."""
        return [float(each["seconds"]) for each in self.ask(next(iter(self._lines)), {"do": "compute"}, ranks)]

    def ask(self, job: str, request: Message, ranks: Sequence[int] | None = None) -> list[Message]:
        """Send a request to ranks of a job, by default to all; return their replies by rank."""
        deadline = time.monotonic() + self._run_timeout_s
        waiting = {self._lines[job][rank]: rank for rank in (range(self.num_ranks) if ranks is None else ranks)}
        for line, rank in waiting.items():
            self._send(job, rank, line, request)
        replies: dict[int, Message] = {}
        while waiting:
            ready = self._readable(list(waiting), deadline)
            if not ready and time.monotonic() >= deadline:
                late = tuple(waiting.values())
                raise self._late(job, f"did not answer {request} within {self._run_timeout_s:g} s: ranks {late}", late)
            for line in ready:
                rank = waiting.pop(line)
                replies[rank] = self._reply(job, line, deadline, rank)
        return [reply for _, reply in sorted(replies.items())]

    def agree(self, value: float) -> float:
        """Return the value unchanged: only this process runs the round loop."""
        return value

    def finish(self, timeout_s: float = 20.0) -> None:
        """Make all ranks exit and wait for them; report each job that fails on stderr, by name."""
        for name, lines in self._lines.items():
            for rank, line in lines.items():
                self._send(name, rank, line, {"do": "exit"})
        for name, running in self._running.items():
            status = running.finish(timeout_s)
            if status != 0:
                how = f"did not end within {timeout_s:g} s" if status is None else f"ended with status {status}"
                print(f"job {name} {how} after the measurement\n{running.output()}", file=sys.stderr)
        self.close()

    def _dismiss(self) -> None:
        """Make all ranks exit after an interrupt, so that they clean up."""
        for lines in self._lines.values():
            for line in lines.values():
                with contextlib.suppress(OSError):
                    line.send({"do": "exit"})
        for running in self._running.values():
            running.settle(_DISMISSAL_S)

    def close(self) -> None:
        """Kill all jobs and close all connections."""
        for running in self._running.values():
            running.close()
        for lines in self._lines.values():
            for line in lines.values():
                line.connection.close()
        self._running, self._lines = {}, {}
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
            return
        if not issubclass(kind, Exception):
            self._dismiss()
        self.close()

    def _start(self, job: Job, address: str, deadline: float) -> None:
        try:
            running = self._running[job.name] = RunningJob(job, address)
        except OSError as error:
            raise LaunchError(f"job {job.name} could not be started: {error}") from error
        lines = self._lines[job.name]
        held: set[tuple[Key, ...]] = set()
        while len(lines) < job.num_ranks:
            if not self._readable([self._listener], deadline):
                missing = tuple(rank for rank in range(job.num_ranks) if rank not in lines)
                if running.exit_status() is not None:
                    raise self._failed(job.name, f"died with status {running.exit_status()} before it was ready")
                if time.monotonic() >= deadline:
                    raise self._late(job.name, "was not ready in time", missing)
                continue
            line = Line(self._listener.accept()[0])
            hello = self._reply(job.name, line, deadline, None)
            if hello["job"] != job.name or hello["rank"] in lines:
                raise self._failed(job.name, f"has two ranks {hello['rank']}, or is {hello['job']}")
            lines[hello["rank"]] = line
            held.add(tuple(Key(*key) for key in hello["contenders"]))
        if len(held) != 1 or set(lines) != set(range(job.num_ranks)):
            raise self._failed(job.name, f"has ranks {sorted(lines)} with {len(held)} different sets of contenders")
        for key in held.pop():
            if key in self.job_of:
                raise InvalidArgument(f"jobs {self.job_of[key]} and {job.name} both offer {key}")
            self.job_of[key] = job.name

    def _send(self, job: str, rank: int, line: Line, request: Message) -> None:
        try:
            line.send(request)
        except ConnectionError:
            raise self._failed(job, f"lost rank {rank}") from None

    def _reply(self, job: str, line: Line, deadline: float, rank: int | None) -> Message:
        while True:
            if not self._readable([line], deadline):
                if time.monotonic() >= deadline:
                    raise self._late(job, "stopped in the middle of a message", () if rank is None else (rank,))
                continue
            try:
                message = line.receive()
            except EOFError:
                raise self._failed(job, "lost a rank" if rank is None else f"lost rank {rank}") from None
            if message is not None and "error" in message:
                raise self._failed(job, f"failed on rank {rank}:\n{message['error']}")
            if message is not None:
                return message

    @staticmethod
    def _readable(sources: list[_Source], deadline: float) -> list[_Source]:
        wait_s = max(0.0, min(_CHECK_EVERY_S, deadline - time.monotonic()))
        return select.select(sources, [], [], wait_s)[0]

    def _failed(self, job: str, how: str) -> LaunchError:
        self._running[job].settle(_SETTLE_S)
        return LaunchError(self._with_output(job, how))

    def _late(self, job: str, how: str, ranks: tuple[int, ...]) -> CommTimeout:
        return CommTimeout(self._with_output(job, how), ranks)

    def _with_output(self, job: str, how: str) -> str:
        """The message of an error, with the job's output; the error ends all jobs, by `close`."""
        message = f"job {job} {how}\n--- output of {job} ---\n{self._running[job].output()}"
        self.close()
        return message
