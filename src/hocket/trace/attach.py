"""Finds the recorders of running processes, without their help."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import RecorderError
from hocket.trace.region import RecorderSnapshot, read_recorder

_NAMES = re.compile(r"/memfd:hocket-recorder \(deleted\)|.*/hocket-recorder-\d+-\d+-\d+")


@dataclass(frozen=True)
class RecorderPlace:
    """A recorder in memory that a process has.

    Args:
        path: what to read, such as ``/proc/4711/fd/5``.
        holder: number of the process that has it open: the recorder's own, or its launcher.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     (place,) = hk.trace.find_recorders(os.getpid())
        ...     place.read().owner.pid == os.getpid()
        True
    """

    path: Path
    holder: int

    def read(self, latest: int | None = None) -> RecorderSnapshot:
        """Return what it holds now; see `read_recorder`."""
        return read_recorder(self.path, latest)


def find_recorders(pid: int) -> list[RecorderPlace]:
    """Return the recorders that a process has: its own, or as `hocket run` those of all its ranks.

    The process needs not run: it may hang or be stopped.

    Args:
        pid: number of a process.

    Raises:
        RecorderError: there is no such process, it belongs to another user, or it has no recorder.

    Examples:
        >>> import os
        >>> with hk.init() as comm:
        ...     comm.all_reduce(np.ones(4))
        ...     (place,) = hk.trace.find_recorders(os.getpid())
        ...     hk.trace.operations_in(place.read())[-1].record.op
        'all_reduce'
    """
    folder = Path(f"/proc/{pid}/fd")
    try:
        found = dict(_open_recorders(folder))
    except FileNotFoundError:
        raise RecorderError(f"there is no process {pid}") from None
    except PermissionError:
        raise RecorderError(f"process {pid} belongs to another user: run as that user, or as root") from None
    if not found:
        raise RecorderError(
            f"process {pid} has no recorder: it has not called hocket.init(), was started with HOCKET_RECORDER=0, or "
            "has closed descriptors that it did not open"
        )
    return [RecorderPlace(path, pid) for path in found.values()]


def _open_recorders(folder: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    for path in sorted(folder.iterdir(), key=lambda each: int(each.name)):
        try:
            if _NAMES.fullmatch(os.readlink(path)) is None:
                continue
            status = path.stat()
        except OSError:
            continue  # closed meanwhile
        yield (status.st_dev, status.st_ino), path
