"""Report to the launcher that a rank's interpreter has started; the launcher starts only a few ranks at a time.

Every rank imports this file before the program, so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import struct

READY_FD = "HOCKET_READY_FD"  # the variable that names the file descriptor
_MESSAGE = struct.Struct("=I")  # number of the rank; short enough for an atomic write


def say_ready() -> None:
    """Send this rank's number to the launcher, once."""
    fd, rank = os.environ.pop(READY_FD, ""), os.environ.get("RANK", "")
    if fd.isdigit() and rank.isdigit():
        with contextlib.suppress(OSError):
            os.write(int(fd), _MESSAGE.pack(int(rank)))
            os.close(int(fd))


def ranks_that_are_ready(fd: int) -> list[int]:
    """Return the ranks that have reported since the last call.

    Args:
        fd: reading end of the pipe, non-blocking.
    """
    try:
        data = os.read(fd, 1024 * _MESSAGE.size)
    except BlockingIOError:
        return []
    return [rank for (rank,) in _MESSAGE.iter_unpack(data[: len(data) // _MESSAGE.size * _MESSAGE.size])]
