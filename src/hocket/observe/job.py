"""Finds the recorders of a job: those of a process and of all its descendants."""

from __future__ import annotations

import os
from pathlib import Path

from hocket.errors import RecorderError
from hocket.observe.processes import descendants_of, owner_of, process_status
from hocket.observe.saved import empty_folder
from hocket.observe.sparse_copy import copy_sparsely
from hocket.trace import RecorderPlace, find_recorders


def find_job(pid: int) -> list[RecorderPlace]:
    """Return the recorders of a process and of all its descendants, each once.

    Args:
        pid: number of a process, such as that of `hocket run`, `torchrun` or `mpirun`, or of one rank.

    Raises:
        RecorderError: there is no such process, or it and its descendants have no recorder.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     os.getpid() in [place.read(0).owner.pid for place in observe.find_job(os.getpid())]
        True
    """
    process_status(pid)
    found: dict[tuple[int, int], RecorderPlace] = {}
    for each in descendants_of(pid):
        try:
            places = find_recorders(each)
        except RecorderError as error:  # ended meanwhile, or without a recorder
            if each == pid and owner_of(pid) not in (None, os.geteuid()):
                raise error  # of another user: no descendant can be read either
            continue
        for place in places:
            try:
                status = place.path.stat()
            except OSError:
                continue
            if status.st_size == 0:
                continue  # of a rank that has not begun to record
            found.setdefault((status.st_dev, status.st_ino), place)
    if not found:
        raise RecorderError(
            f"process {pid} and its descendants have no recorder: none has called hocket.init(), and none was started "
            "by `hocket observe run`"
        )
    return list(found.values())


def copy_recorders(pid: int, folder: str | Path) -> list[Path]:
    """Copy the recorders of a job, to read them later or elsewhere.

    Args:
        pid: number of a process; see `find_job`.
        folder: a new or an empty folder.

    Returns:
        The copies, for `hocket.trace.read_recorder`.

    Raises:
        InvalidArgument: `folder` is not empty or cannot be made.
        RecorderError: there is nothing to copy, or a recorder cannot be read.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init() as comm:
        ...     copies = observe.copy_recorders(os.getpid(), "copies")
        >>> os.getpid() in [hk.trace.read_recorder(copy).owner.pid for copy in copies]
        True
    """
    places = find_job(pid)
    target = empty_folder(Path(folder))
    copies = []
    for place in places:
        owner = place.read(0).owner
        copy = target / f"{'process' if owner.rank is None else f'rank-{owner.rank}'}-{owner.pid}.recorder"
        copy_sparsely(place.path, copy)
        copies.append(copy)
    return copies
