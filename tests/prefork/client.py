"""Runs jobs and programs through the fork server, from the process of pytest."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job as run_fresh_job
from hocket.boot.supervisor import Patience

from ..cpu_time import cpu_seconds_of
from .program import ForkedProgram, receive_pid, start_fresh_program
from .requests import JobRequest, ProgramRequest, Request

_ROOT = Path(__file__).parents[2]
_START_DEADLINE_S = 120.0
_GRACE_S = 30.0  # for a job's own clean-up, past its time limit
# Variables that are read when modules are loaded: with other values than the server's programs are fresh ones.
_READ_AT_LOAD = ("HOCKET_ISA", "LD_", "PYTHON", "KERAS_", "TORCH_", "OPENBLAS_", "NPY_", "MALLOC_", "GLIBC_")
# What is likely to import torch has one of these words in its arguments, its script or its pickled function. Where it
# imports torch without, that takes a second longer.
_HEAVY_WORDS = re.compile(rb"torch|keras|gloo|train|tune|doctor", re.IGNORECASE)
_KERAS = {"KERAS_BACKEND": "torch"}
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def is_likely_to_import_torch(words: Sequence[str], folder: Path) -> bool:
    """Return whether a job or a program with these words had better find torch imported."""
    files = [path for word in words for path in (folder / word, Path(word, "task")) if path.is_file()]
    return any(_HEAVY_WORDS.search(text) for text in (" ".join(words).encode(), *(path.read_bytes() for path in files)))


def _read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    given = _KERAS | dict(environment)  # importing keras beside torch sets it
    return {name: value for name, value in given.items() if name.startswith(_READ_AT_LOAD)}


class ForkServer:
    """A server process, started when it is first needed, with the variables of `take_variables`.

    `cpu_s` is what its jobs have taken so far, in seconds of CPU; they are no children of this process.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._light: socket.socket | None = None
        self._heavy: socket.socket | None = None
        self.take_variables()

    def take_variables(self) -> None:
        """Let the server start with the variables of this moment, not with those of the test that needs it first."""
        self._environment = dict(os.environ)

    def run_job(self, command: list[str], num_ranks: int, *, patience: Patience, **options: Any) -> JobResult:
        """Run a job as `hocket.boot.launcher.run_job` does, of forked ranks where the variables allow it."""
        request = JobRequest(dict(os.environ), os.getcwd(), command, num_ranks, patience)
        if not self.may_fork(request.environment):
            return run_fresh_job(command, num_ranks, patience=patience, **options)
        limit_s = None if patience.timeout_s is None else patience.timeout_s + _GRACE_S
        sys.stdout.flush()
        sys.stderr.flush()
        with Job(self, request, is_likely_to_import_torch(command, Path.cwd())) as job:
            if not job.connection.poll(limit_s):
                raise TimeoutError(f"the job did not end within {limit_s} s")
            return job.result()

    def start_job(self, command: Sequence[str], num_ranks: int, environment: Mapping[str, str], is_heavy: bool) -> Job:
        """Start a job of forked ranks, which find torch imported if it `is_heavy`."""
        return Job(self, JobRequest(environment, os.getcwd(), command, num_ranks, Patience()), is_heavy)

    def run_program(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python ARGUMENTS`` as `subprocess.run` does with captured output, forked where the variables allow it.

        Args:
            arguments: ``["script.py", *args]`` or ``["-m", "module", *args]``.
            folder, environment: of the program.
            timeout_s: seconds, after which it is killed and subprocess.TimeoutExpired raised.
        """
        with self.start_program(arguments, folder=folder, environment=environment) as program:
            stdout, stderr = program.communicate(timeout_s)
        return subprocess.CompletedProcess([sys.executable, *arguments], program.returncode, stdout, stderr)

    def start_program(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[str] | ForkedProgram:
        """Start ``python ARGUMENTS`` in a process group of its own, with pipes; the rest as of `run_program`."""
        request = ProgramRequest(dict(environment), str(folder), arguments)
        if not self.may_fork(request.environment):
            return start_fresh_program([sys.executable, *arguments], folder=folder, environment=environment)
        pipes = [os.pipe() for _ in range(2)]
        try:
            connection = self.send(
                request, is_likely_to_import_torch(arguments, folder), *(written for _, written in pipes)
            )
            receive_pid(connection)  # of what waits for the program
        finally:
            for _, written in pipes:
                os.close(written)
        return ForkedProgram(self, connection, *(open(read, "rb", buffering=0) for read, _ in pipes))

    def close(self) -> None:
        """End the server."""
        if self._process is not None and self._light is not None and self._heavy is not None:
            self._heavy.close()
            self._light.close()
            self._process.wait(_START_DEADLINE_S)
            self._process = None

    def may_fork(self, environment: Mapping[str, str]) -> bool:
        """Return whether a program with these variables can be a fork of the server."""
        if self._process is None:
            self._start()
        return _read_at_load(environment) == _read_at_load(self._environment)

    def send(self, request: Request, is_heavy: bool, stdout: int, stderr: int) -> Connection:
        """Ask for something; the pid of what does it comes over the connection, and then what `receive` returns."""
        server = self._heavy if is_heavy else self._light
        assert server is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(server, [b"j"], [theirs.fileno(), stdout, stderr])
        connection = Connection(ours.detach())
        connection.send(request)
        return connection

    def receive(self, connection: Connection) -> Any:
        """Return what came of a request, or raise it."""
        answer, cpu_s = connection.recv()
        self.cpu_s += cpu_s
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _start(self) -> None:
        self._light, light = socket.socketpair()
        self._heavy, heavy = socket.socketpair()
        with light, heavy:
            descriptors = [light.fileno(), heavy.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prefork.server", *map(str, descriptors)],
                cwd=_ROOT,
                env={**_KERAS, **self._environment, **_THREADS},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        for own in (self._light, self._heavy):
            own.settimeout(_START_DEADLINE_S)
            if own.recv(1) != b"r":
                raise RuntimeError("the fork server did not start; its messages are above")


class Job:
    """A job of forked ranks, and its launcher, which the server has forked.

    As a context it is killed where it has not told its result.

    Args:
        server: to fork it, and to count what it takes.
        request: for it.
        is_heavy: whether its ranks find torch imported.
    """

    def __init__(self, server: ForkServer, request: JobRequest, is_heavy: bool) -> None:
        self.connection = server.send(request, is_heavy, 1, 2)
        self._server = server
        self._pid = receive_pid(self.connection)
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def result(self) -> JobResult:
        """Wait for the end; return how it ended, or raise what its launcher did."""
        self._has_ended = True
        with self.connection:
            answer = self._server.receive(self.connection)
        assert isinstance(answer, JobResult)
        return answer

    def kill(self) -> None:
        """End it at once, if it runs: its ranks die with it, and its guardian removes its files."""
        if self._has_ended:
            return
        self._has_ended = True
        self._server.cpu_s += cpu_seconds_of(self._pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self.connection.close()
