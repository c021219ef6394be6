"""Runs jobs through the fork server: `ForkServer.run_job` takes the place of `hocket.boot.launcher.run_job`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job as run_fresh_job
from hocket.boot.supervisor import Patience

_ROOT = Path(__file__).parents[2]
_START_DEADLINE_S = 120.0
_GRACE_S = 30.0  # for the job's own clean-up, past its time limit
# Variables that are read when modules are loaded: with other values than the server's a job needs fresh interpreters.
_READ_AT_LOAD = ("HOCKET_ISA", "LD_", "PYTHON", "KERAS_", "TORCH", "OPENBLAS_", "NPY_", "MALLOC_", "GLIBC_")
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _read_at_load() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_LOAD)}


class ForkServer:
    """A server process, started when it is first needed.

    `cpu_s` is what its jobs have taken so far, in seconds of CPU; children of the server are not this process's own.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._variables: dict[str, str] = {}

    def run_job(self, command: list[str], num_ranks: int, *, patience: Patience) -> JobResult:
        """Run a job as `hocket.boot.launcher.run_job` does, of forked ranks where the variables allow it."""
        if self._process is None:
            self._start()
        if _read_at_load() != self._variables:
            return run_fresh_job(command, num_ranks, patience=patience)
        assert self._socket is not None
        ours, theirs = socket.socketpair()
        with theirs:
            sys.stdout.flush()
            sys.stderr.flush()
            socket.send_fds(self._socket, [b"j"], [theirs.fileno(), 1, 2])
        with Connection(ours.detach()) as connection:
            pid = connection.recv()
            try:
                connection.send((command, num_ranks, patience, dict(os.environ), os.getcwd()))
                limit_s = None if patience.timeout_s is None else patience.timeout_s + _GRACE_S
                if not connection.poll(limit_s):
                    raise TimeoutError(f"the job did not end within {limit_s} s")
                answer, cpu_s = connection.recv()
            except BaseException:
                os.kill(pid, signal.SIGKILL)  # its ranks die with it, and its guardian removes its files
                raise
        self.cpu_s += cpu_s
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, JobResult)
        return answer

    def close(self) -> None:
        """End the server."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(_START_DEADLINE_S)
            self._process = None

    def _start(self) -> None:
        self._variables = _read_at_load()
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
