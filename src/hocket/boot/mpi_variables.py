"""The variables by which an MPI library finds the launcher; they are hidden from child processes of a rank.

A program that has PMI_FD but not the descriptor fails in MPI_Init; without the variables it is a world of one rank.
Every rank imports this file before the program, so it uses only the standard library.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import os
import re
import sys
from _thread import get_ident
from collections.abc import Iterable, Mapping
from typing import Any

OWN_FD = "HOCKET_PMI_FD"
"""The same descriptor again; it distinguishes our launcher's variables from those of MPI's own launcher."""

FAILED = re.compile(rb"^cmd=hocket_failed code=([0-9]{1,3})\n", re.MULTILINE)
"""Message of a rank whose program has failed, with the exit code."""
OWN = b"cmd=hocket_own"
"""Message of a rank in which hocket, not the program, starts MPI: it may end without MPI_Finalize."""

_FOREIGN = ("PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID")
_OF_OPEN_MPI = ("PMIX_", "OMPI_COMM_WORLD_")
OPEN_MPI_FOLDER = "hocket-pmix-"
"""Prefix of the folder that Open MPI's variables of a rank name."""

_giving: set[int] = set()  # threads that start a child process with the descriptor
_names = {"PMI_FD", "PMI_RANK", "PMI_SIZE", OWN_FD}  # hidden from child processes


def mpi_variables(fd: int, rank: int, size: int) -> dict[str, str]:
    """Return the variables of a rank that has the descriptor `fd`."""
    return {
        "PMI_FD": str(fd),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        OWN_FD: str(fd),
        "MPIR_CVAR_PMI_VERSION": "1",
    }


def without_mpi_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of an outer MPI launcher: our ranks do not belong to its job."""
    return {
        name: value
        for name, value in environ.items()
        if name not in (*_FOREIGN, OWN_FD) and not name.startswith(_OF_OPEN_MPI) and OPEN_MPI_FOLDER not in value
    }


def launchers_fd(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the descriptor to the launcher `hocket run` for this rank's MPI; None under other launchers."""
    environ = os.environ if environ is None else environ
    own = environ.get(OWN_FD, "")
    return int(own) if own.isdigit() and environ.get("PMI_FD") == own else None


def hide_from_children(names: Iterable[str]) -> None:
    """Hide more variables from child processes."""
    _names.update(names)


def keep_from_children() -> None:
    """Hide the variables from child processes that do not get the descriptor.

    `subprocess` and `multiprocessing` start programs by one C function, which closes all descriptors except those it is
    given. Forked children are not ranks either: they close the descriptor.
    """
    fd = launchers_fd()
    if fd is None:
        return
    inode = os.fstat(fd).st_ino
    start = _posixsubprocess.fork_exec

    def fork_exec(
        arguments: Any, executables: Any, close_fds: bool, fds_to_keep: Any, cwd: Any, env: Any, *rest: Any
    ) -> int:
        if not close_fds or fd in fds_to_keep:
            _giving.add(get_ident())
            try:
                return start(arguments, executables, close_fds, fds_to_keep, cwd, env, *rest)
            finally:
                _giving.discard(get_ident())
        # Do not remove them from the C environment temporarily: other threads may start MPI or programs meanwhile.
        variables = env if env is not None else [name + b"=" + value for name, value in os.environb.items()]
        return start(arguments, executables, close_fds, fds_to_keep, cwd, _without_own(variables, fd), *rest)

    _posixsubprocess.fork_exec = fork_exec
    if "subprocess" in sys.modules:
        sys.modules["subprocess"]._fork_exec = fork_exec  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: _forget(fd, inode))


def say_own() -> None:
    """Notify the launcher, before MPI starts, that hocket starts MPI and ends it in its own way."""
    _send(OWN + b"\n")


def say_failed(code: int) -> None:
    """Notify the launcher that this rank's program has failed, before its MPI waits for the others in MPI_Finalize.

    Args:
        code: exit code of the rank, 1 to 255.
    """
    _send(b"cmd=hocket_failed code=%d\n" % code)


def _send(line: bytes) -> None:
    fd = launchers_fd()
    if fd is not None:
        with contextlib.suppress(OSError):
            os.write(fd, line)


def _without_own(variables: list[bytes], fd: int) -> list[bytes]:
    """Return variables without those of this rank; those of a launcher inside the rank are kept."""
    if not any(each == b"PMI_FD=%d" % fd for each in variables):
        return variables
    names = {name.encode() for name in _names}
    return [each for each in variables if each.partition(b"=")[0] not in names]


def _forget(fd: int, inode: int) -> None:
    if launchers_fd() != fd or get_ident() in _giving:
        return
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_ino == inode:  # else MPI has closed it, and another file has the number
            os.close(fd)
    for name in _names:
        os.environ.pop(name, None)
