"""The variables by which an MPI library finds the launcher, and that programs which a rank starts must not see.

A program that finds PMI_FD without holding the descriptor behind it ends in MPI_Init; without the variables it is a
world of one rank. Every rank of a launcher imports this file before the program, so it uses the standard library alone.
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
"""The descriptor once more, by which this launcher's variables are told from those of MPI's own."""

FAILED = re.compile(rb"^cmd=hocket_failed code=([0-9]{1,3})\n", re.MULTILINE)
"""What a rank says whose program has failed, and its exit code."""
OWN = b"cmd=hocket_own"
"""What a rank says where hocket starts MPI, not the program: it may end without MPI_Finalize."""

_FOREIGN = ("PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID")
_OF_OPEN_MPI = ("PMIX_", "OMPI_COMM_WORLD_")
OPEN_MPI_FOLDER = "hocket-pmix-"
"""How the folder is called that Open MPI's variables of a rank name."""

_giving: set[int] = set()  # threads that start a program which gets the descriptor
_names = {"PMI_FD", "PMI_RANK", "PMI_SIZE", OWN_FD}  # that are hidden


def mpi_variables(fd: int, rank: int, size: int) -> dict[str, str]:
    """Make the variables of one rank, which holds `fd`."""
    return {
        "PMI_FD": str(fd),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        OWN_FD: str(fd),
        "MPIR_CVAR_PMI_VERSION": "1",
    }


def without_mpi_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of a launcher around this one, of whose job no rank of this one is."""
    return {
        name: value
        for name, value in environ.items()
        if name not in (*_FOREIGN, OWN_FD) and not name.startswith(_OF_OPEN_MPI) and OPEN_MPI_FOLDER not in value
    }


def launchers_fd(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the descriptor by which the launcher `hocket run` starts this rank's MPI; None under any other."""
    environ = os.environ if environ is None else environ
    own = environ.get(OWN_FD, "")
    return int(own) if own.isdigit() and environ.get("PMI_FD") == own else None


def hide_from_children(names: Iterable[str]) -> None:
    """Keep further variables from programs that this process starts."""
    _names.update(names)


def keep_from_children() -> None:
    """See to it that programs which this process starts do not find the variables unless they hold the descriptor.

    `subprocess` and `multiprocessing` start programs by one function of C, which closes all descriptors but those that
    it is told. Children that are forked are not ranks either, and give the descriptor back.
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
        # Never by taking them out of C's environment for a moment: other threads may start MPI, or programs, meanwhile.
        variables = env if env is not None else [name + b"=" + value for name, value in os.environb.items()]
        return start(arguments, executables, close_fds, fds_to_keep, cwd, _without_own(variables, fd), *rest)

    _posixsubprocess.fork_exec = fork_exec
    if "subprocess" in sys.modules:
        sys.modules["subprocess"]._fork_exec = fork_exec  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: _forget(fd, inode))


def say_own() -> None:
    """Tell the launcher that MPI is started by hocket, which ends it in its own way; before it starts."""
    _say(OWN + b"\n")


def say_failed(code: int) -> None:
    """Tell the launcher that this rank's program has failed, before its MPI waits for the others to finalize.

    Args:
        code: with which the rank will end, 1 to 255.
    """
    _say(b"cmd=hocket_failed code=%d\n" % code)


def _say(line: bytes) -> None:
    fd = launchers_fd()
    if fd is not None:
        with contextlib.suppress(OSError):
            os.write(fd, line)


def _without_own(variables: list[bytes], fd: int) -> list[bytes]:
    """Leave out what is this rank's; a launcher within it makes variables of its own."""
    if not any(each == b"PMI_FD=%d" % fd for each in variables):
        return variables
    names = {name.encode() for name in _names}
    return [each for each in variables if each.partition(b"=")[0] not in names]


def _forget(fd: int, inode: int) -> None:
    if launchers_fd() != fd or get_ident() in _giving:
        return
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_ino == inode:  # else MPI has closed it, and the number is another file's
            os.close(fd)
    for name in _names:
        os.environ.pop(name, None)
