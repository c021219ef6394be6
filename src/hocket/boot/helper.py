"""How a process starts a helper, a program of this package that needs the standard library alone, and what it is told.

What a helper is for goes to it through a pipe, since a secret may be in it: command lines are for all to read.
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
    """What a server of control connections is to serve.

    Args:
        fds: listening sockets.
        size: ranks of the job.
        job: its name, with how many times it was restarted.
        timeout_s: seconds in which all ranks have to come.
        secret: key of the user's secret, in hexadecimal digits.
        tls: paths of the certificate and of its key, where TLS is asked for.
    """

    fds: list[int]
    size: int
    job: str
    timeout_s: float
    secret: str = field(repr=False)
    tls: list[str | None] | None = None


@dataclass(frozen=True)
class RelayTask:
    """What a helper is to do that hands the lines of a rank's MPI library on.

    Args:
        fds: its end of the rank's socket pair.
        family, place, port: of the server of control connections, as of `hocket.boot.sockets.Interface`.
        job, size, rank: as the rank's own control connection has them.
        secret: key of the user's secret, in hexadecimal digits.
        tls: path of the certificate, where TLS is asked for.
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
    """Return the command that runs ``main()`` of a module, without site packages and whatever the environment says."""
    program = f"import sys; sys.path.append({str(_FOLDER)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", program]


def start_helper(module: str, task: ServerTask | RelayTask) -> IO[bytes]:
    """Start a process that outlives this one.

    Returns:
        The pipe through which it was told its task, in one line: it hears when that is closed, or this process ends.

    Raises:
        ResourceExhausted: there can be no further process, or no further descriptor.
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
    """Start `hocket.boot.pmi` as a program, at a listening socket; raises as `start_helper`."""
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
