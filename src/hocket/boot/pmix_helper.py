"""The launcher's side of the PMIx server for Open MPI (`hocket.boot.pmix_server`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hocket.boot.helper import helper_command
from hocket.boot.mpi_variables import OPEN_MPI_FOLDER
from hocket.boot.open_mpi import LIBRARY, are_variables
from hocket.boot.watcher import Watcher

_END_S = 3.0
_FOLDER = "PMIX_SERVER_TMPDIR"  # the variable that names the server's folder
_MOST_ANSWER = 64 << 20  # a few hundred bytes a rank


class PmixHelper:
    """Starts a PMIx server and sends its variables to ranks.

    Args:
        size: number of ranks of the job, all on this host.
        watcher: waits for messages of the server.
        send: called with a rank and the answer for it.
    """

    def __init__(self, size: int, watcher: Watcher, send: Callable[[int, bytes], None]) -> None:
        self._send = send
        self._size = size
        self.inside: set[int] = set()
        """Ranks between MPI_Init and MPI_Finalize."""
        self.aborted: tuple[int, int] | None = None
        """The rank that first called MPI_Abort, and its code."""
        self._watcher = watcher
        self._received = b""
        self._answer: dict[str, object] | None = None
        self._asking: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        library = Path(sys.prefix) / LIBRARY
        if not library.exists():
            self._answer = {"error": f"{library}, a part of Open MPI's wheel, does not exist"}
            return
        try:
            self._process = subprocess.Popen(
                helper_command("hocket.boot.pmix_server"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps({"library": str(library), "size": size}).encode() + b"\n")
            self._process.stdin.flush()
            watcher.watch(self._process.stdout.fileno(), self._take_in)
        except OSError as error:
            self._answer = {"error": f"the helper process could not be started: {error}"}

    def send_variables(self, rank: int) -> None:
        """Send a rank the server's variables when it runs, or the reason why it cannot run."""
        if self._answer is None:
            self._asking.append(rank)
            return
        variables = self._answer.get("variables")
        own = self._answer if variables is None else {"variables": variables[rank]}  # type: ignore[index]
        self._send(rank, json.dumps(own).encode() + b"\n")

    def close(self) -> None:
        """Stop the server."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        variables = (self._answer or {}).get("variables")
        folder = Path(variables[0][_FOLDER]) if variables else None  # type: ignore[index]
        if folder is not None and folder.name.startswith(OPEN_MPI_FOLDER):  # it remains if the server was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _take_in(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        part = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._received = (self._received + part).split(b"\n")
        for line in lines:
            self._take_line(line)
        if not part or len(self._received) > _MOST_ANSWER:
            self._watcher.unwatch(self._process.stdout.fileno())
            if self._answer is None:
                self._take_answer({"error": "its PMIx server has ended"})

    def _take_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if self._answer is None:
            self._take_answer(message if self._is_answer(message) else {"error": "its PMIx server gave no answer"})
        elif isinstance(message, dict) and self._is_rank(message.get("connected")):
            self.inside.add(message["connected"])
        elif isinstance(message, dict) and self._is_rank(message.get("finalized")):
            self.inside.discard(message["finalized"])
        elif isinstance(message, dict) and self._is_rank(message.get("aborted")) and type(message.get("code")) is int:
            self.aborted = self.aborted or (message["aborted"], message["code"])

    def _take_answer(self, answer: dict[str, object]) -> None:
        self._answer = answer
        for rank in self._asking:
            self.send_variables(rank)

    def _is_answer(self, message: object) -> bool:
        if not isinstance(message, dict):
            return False
        variables = message.get("variables")
        if variables is None:
            return isinstance(message.get("error"), str)
        return (
            isinstance(variables, list)
            and len(variables) == self._size
            and all(are_variables(each) and _FOLDER in each for each in variables)
        )

    def _is_rank(self, value: object) -> bool:
        return type(value) is int and 0 <= value < self._size
