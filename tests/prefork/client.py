"""Runs jobs and programs through the fork server, from the process of pytest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job as run_fresh_job
from hocket.boot.supervisor import Patience

from .program import ForkedProgram, receive_pid, start_fresh_program
from .requests import JobRequest, ProgramRequest, Request

_ROOT = Path(__file__).parents[2]
_START_DEADLINE_S = 120.0
_GRACE_S = 30.0  # for a job's own clean-up, past its time limit
# Variables that are read when modules are loaded: with other values than the server's programs are fresh ones.
_READ_AT_LOAD = ("HOCKET_ISA", "LD_", "PYTHON", "KERAS_", "TORCH", "OPENBLAS_", "NPY_", "MALLOC_", "GLIBC_")
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_LOAD)}


class ForkServer:
    """A server process, started when it is first needed.

    `cpu_s` is what its jobs have taken so far, in seconds of CPU; they are no children of this process.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._variables: dict[str, str] = {}

    def run_job(self, command: list[str], num_ranks: int, *, patience: Patience) -> JobResult:
        """Run a job as `hocket.boot.launcher.run_job` does, of forked ranks where the variables allow it."""
        request = JobRequest(dict(os.environ), os.getcwd(), command, num_ranks, patience)
        if not self.may_fork(request.environment):
            return run_fresh_job(command, num_ranks, patience=patience)
        limit_s = None if patience.timeout_s is None else patience.timeout_s + _GRACE_S
        sys.stdout.flush()
        sys.stderr.flush()
        connection, pid = self._send(request, 1, 2)
        with connection:
            try:
                if not connection.poll(limit_s):
                    raise TimeoutError(f"the job did not end within {limit_s} s")
                answer = self.receive(connection)
            except BaseException:
                os.kill(pid, signal.SIGKILL)  # its ranks die with it, and its guardian removes its files
                raise
        assert isinstance(answer, JobResult)
        return answer

    def start_job(
        self, command: Sequence[str], num_ranks: int, environment: Mapping[str, str]
    ) -> tuple[Connection, int]:
        """Start a job of forked ranks; return where `receive` gets its `JobResult`, and the pid of its launcher."""
        return self._send(JobRequest(environment, os.getcwd(), command, num_ranks, Patience()), 1, 2)

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
            connection, _ = self._send(request, *(written for _, written in pipes))
        finally:
            for _, written in pipes:
                os.close(written)
        return ForkedProgram(self, connection, *(open(read, "rb", buffering=0) for read, _ in pipes))

    def close(self) -> None:
        """End the server."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(_START_DEADLINE_S)
            self._process = None

    def may_fork(self, environment: Mapping[str, str]) -> bool:
        """Return whether a program with these variables can be a fork of the server."""
        if self._process is None:
            self._start()
        return _read_at_load(environment) == self._variables

    def _send(self, request: Request, stdout: int, stderr: int) -> tuple[Connection, int]:
        assert self._socket is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"j"], [theirs.fileno(), stdout, stderr])
        connection = Connection(ours.detach())
        pid = receive_pid(connection)
        connection.send(request)
        return connection, pid

    def receive(self, connection: Connection) -> Any:
        """Return what came of a request, or raise it."""
        answer, cpu_s = connection.recv()
        self.cpu_s += cpu_s
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _start(self) -> None:
        self._variables = _read_at_load(os.environ)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prefork.server", str(theirs.fileno())],
                cwd=_ROOT,
                env={**os.environ, **_THREADS, "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "torch")},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket.settimeout(_START_DEADLINE_S)
        if self._socket.recv(1) != b"r":
            raise RuntimeError("the fork server did not start; its messages are above")
