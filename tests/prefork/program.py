"""A forked program with the methods of `subprocess.Popen` that tests use."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, Self

_PIECE_BYTES = 1 << 16
_DEADLINE_S = 60.0  # for what takes a moment


def start_fresh_program(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, with pipes."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def receive_pid(connection: Connection) -> int:
    """Return the pid that the fork server tells as soon as it has forked."""
    if not connection.poll(_DEADLINE_S):
        raise TimeoutError(f"the fork server told no pid within {_DEADLINE_S:g} s")
    pid: int = connection.recv()
    return pid


class _Server(Protocol):
    def receive(self, connection: Connection) -> int: ...


class ForkedProgram:
    """A running program; `pid` is its process, and its process group.

    Args:
        server: which counts what it takes.
        connection: over which its pid comes, and then its exit code.
        stdout, stderr: the reading ends of its pipes.
    """

    def __init__(self, server: _Server, connection: Connection, stdout: FileIO, stderr: FileIO) -> None:
        self.returncode: int | None = None
        self.pid = receive_pid(connection)
        self.args = [sys.executable]
        self._server = server
        self._connection = connection
        self._outputs = {stdout: b"", stderr: b""}
        self._open = {stdout, stderr}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.kill()
            self.wait(_DEADLINE_S)
        for pipe in self._outputs:
            pipe.close()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None and self._connection.poll():
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; after `timeout` seconds raise subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both pipes to their ends, and wait; errors as of `wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for pipe in self._open:
                selector.register(pipe, selectors.EVENT_READ)
            while self._open:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in selector.select(left_s):
                    self._read(key.fileobj, selector)  # type: ignore[arg-type]
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        stdout, stderr = (content.decode(errors="replace") for content in self._outputs.values())
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it has not ended."""
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # its end is on its way here

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, pipe: FileIO, selector: selectors.BaseSelector) -> None:
        piece = pipe.read(_PIECE_BYTES)
        if piece:
            self._outputs[pipe] += piece
        else:
            selector.unregister(pipe)
            self._open.discard(pipe)

    def _end(self) -> None:
        self.returncode = self._server.receive(self._connection)
        self._connection.close()
