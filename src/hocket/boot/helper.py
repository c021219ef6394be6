"""Start helpers: programs of this package that need only the standard library.

A helper reads its task from a pipe: the task may have a secret, and all users can read command lines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from hocket.errors import ResourceExhausted

_FOLDER = Path(__file__).parents[2]


@dataclass(frozen=True)
class ServerTask:
    """Task of a server of control connections.

    Args:
        fds: descriptors of listening sockets.
        size: number of ranks of the job.
        job: name of the job, with the number of its restarts.
        timeout_s: seconds in which all ranks must join.
        secret: key of the user's secret, in hexadecimal digits.
        tls: paths of the certificate and its key if TLS is enabled.
    """

    fds: list[int]
    size: int
    job: str
    timeout_s: float
    secret: str = field(repr=False)
    tls: list[str | None] | None = None


@dataclass(frozen=True)
class RelayTask:
    """Task of a helper that relays the lines of a rank's MPI library.

    Args:
        fds: descriptor of its end of the rank's socket pair.
        family, place, port: address of the server of control connections, as in `hocket.boot.sockets.Interface`.
        job, size, rank: as for the rank's own control connection.
        secret: key of the user's secret, in hexadecimal digits.
        tls: path of the certificate if TLS is enabled.
    """

    fds: list[int]
    family: int
    place: list[str | int]
    port: int
    job: str
    size: int
    rank: int
    secret: str = field(repr=False)
    tls: str | None


def helper_command(module: str) -> list[str]:
    """Return the command that runs ``main()`` of a module, without site packages and Python's variables."""
    program = f"import sys; sys.path.append({str(_FOLDER)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", program]


def start_helper(module: str, task: ServerTask | RelayTask) -> IO[bytes]:
    """Start a process that outlives this one.

    Returns:
        The pipe to its standard input, after the task was written. The helper is notified when the pipe is closed or
        this process ends.

    Raises:
        ResourceExhausted: the limit of processes or descriptors is reached.
    """
    try:
        helper = _popen(helper_command(module), task.fds, stdin=subprocess.PIPE)
        assert helper.stdin is not None
        try:
            helper.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
            helper.stdin.flush()
        except BaseException:
            helper.stdin.close()
            raise
        return helper.stdin
    except OSError as error:
        raise ResourceExhausted(f"no helper process could be started for the job: {error}") from error


def start_pmi_server(fd: int, size: int, parent: int) -> None:
    """Start `hocket.boot.pmi` as a program on a listening socket; same errors as `start_helper`."""
    try:
        _popen([*helper_command("hocket.boot.pmi"), str(fd), str(size), str(parent)], [fd], stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ResourceExhausted(f"no PMI server could be started for MPI: {error}") from error


def _popen(command: Sequence[str], fds: Sequence[int], stdin: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )
