"""What a recorder holds beside the events of files: the kernel's counters of a process and bytes that are no events."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

STATES = ("none", "running", "ended", "unreadable")
AT = 1536
"""Offset in a recorder."""
LAYOUT = struct.Struct("<II10Q")


@dataclass(frozen=True)
class ReadWritten:
    """Numbers of bytes.

    Args:
        read: bytes read.
        written: bytes written.

    Examples:
        >>> hk.trace.ReadWritten(read=3, written=4).read
        3
    """

    read: int
    written: int


@dataclass(frozen=True)
class IoTotals:
    """The kernel's counters of one process, and what the hooks of file I/O know beside their events.

    Args:
        state: "none": no hooks; "running"; "ended"; "unreadable": the kernel's counters cannot be read.
        reason: why they cannot be read.
        at_begin: the kernel's counters (``rchar`` and ``wchar`` of ``/proc/PID/io``) when the hooks began.
        at_end: when they ended; zeros while they run.
        other: bytes of hooked calls on what is no file: pipes, sockets, terminals, files of the kernel.
        excluded: bytes in the kernel's counters that are not the program's: of children that it has waited for, and
            what the hooks read themselves.
        uncounted: bytes of events that the kernel does not count.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     hk.trace.find_recorders(os.getpid())[0].read().io.state in ("none", "running", "ended")
        True
    """

    state: str
    reason: str
    at_begin: ReadWritten
    at_end: ReadWritten
    other: ReadWritten
    excluded: ReadWritten
    uncounted: ReadWritten


NO_IO_TOTALS = IoTotals(STATES[0], "", *(ReadWritten(0, 0) for _ in range(5)))


def parse_io_totals(content: bytes) -> IoTotals | None:
    """Return what the bytes say; None: they are none that a recorder holds."""
    state, code, *numbers = LAYOUT.unpack(content.ljust(LAYOUT.size, b"\0")[: LAYOUT.size])
    if state >= len(STATES):
        return None
    reason = os.strerror(code) if code in errno.errorcode else ""
    pairs = [ReadWritten(read, written) for read, written in zip(numbers[::2], numbers[1::2], strict=True)]
    return IoTotals(STATES[state], reason, *pairs)
