"""One agent for all tasks of a run on a host: the first one that takes a lock records for the others, too."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic

from hocket.errors import RecorderError
from hocket.observe.run import memory_folder

AGENT_LOCK = "agent"
"""In the folder in memory of an agent: locked as long as the agent lives."""
_BEGINNING_S = 60.0
"""The first task has the time to reach the first host."""
_RETRY_S = 0.02
_PREFIX = "hocket-agent-"
_USERS = ".users"
_MOST_NAME_NBYTES = 4096


class AgentLease:
    """What the task has that records for all: others may join until `wait_for_others` returns."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def publish(self, memory: Path) -> None:
        """Let other tasks record into a folder."""
        os.pwrite(self._fd, os.fsencode(memory), 0)

    def wait_for_others(self) -> None:
        """Wait until the programs of all other tasks have ended, and let no further one join."""
        with _opened(_users(self._path)) as users:
            while not _try_lock(users, fcntl.LOCK_EX):
                Event().wait(_RETRY_S)
            self._path.unlink(missing_ok=True)
            _users(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave nothing behind."""
        if _is_current(self._path, self._fd):
            self._path.unlink(missing_ok=True)
            _users(self._path).unlink(missing_ok=True)
        os.close(self._fd)


@contextmanager
def lease_or_folder(run: str) -> Iterator[AgentLease | Path]:
    """Become the agent of this host for a run, or learn where the agent that there is collects.

    Args:
        run: what identifies the run on all hosts, such as the address of the first host.

    Returns:
        The lease of the new agent; or the folder in memory of the present one, which waits until this context ends.

    Raises:
        RecorderError: the present agent does not begin to record in time.
    """
    name = _PREFIX + hashlib.sha256(f"{os.getuid()} {run}".encode()).hexdigest()[:16]
    path = memory_folder() / name
    deadline_s = monotonic() + _BEGINNING_S
    while monotonic() < deadline_s:
        with _opened(path) as fd:
            if not _is_current(path, fd):
                continue
            if _try_lock(fd, fcntl.LOCK_EX):
                os.ftruncate(fd, 0)  # of one that was killed
                lease = AgentLease(path, os.dup(fd))
                try:
                    yield lease
                finally:
                    lease.close()
                return
            with _opened(_users(path)) as users:
                folder = os.fsdecode(os.pread(fd, _MOST_NAME_NBYTES, 0))
                if folder and _try_lock(users, fcntl.LOCK_SH) and _is_current(path, fd):
                    yield Path(folder)
                    return
        Event().wait(_RETRY_S)
    raise RecorderError(f"the agent of this host does not begin to record within {_BEGINNING_S:.0f} s ({path})")


def remove_abandoned_locks(folder: Path) -> None:
    """Remove the locks of agents that were killed."""
    for path in folder.glob(_PREFIX + "*"):
        if path.suffix == _USERS:
            continue
        with suppress(OSError, RecorderError), locked(path):
            path.unlink(missing_ok=True)
            _users(path).unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made where it does not exist; BlockingIOError: another process holds it."""
    with _opened(path) as fd:
        if not _try_lock(fd, fcntl.LOCK_EX):
            raise BlockingIOError(f"{path} is locked")
        yield


def is_alive(memory: Path) -> bool:
    """Return whether the agent lives whose processes leave their recorders in a folder."""
    lock = memory / AGENT_LOCK
    try:
        lock.lstat()  # a folder that is not that of an agent is left as it is
        with locked(lock):
            return False
    except (BlockingIOError, PermissionError, RecorderError):
        return True  # or it belongs to another user
    except (OSError, ValueError):
        return False


def _users(path: Path) -> Path:
    return path.with_name(path.name + _USERS)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RecorderError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise RecorderError(f"{path} belongs to another user")
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(path: Path, fd: int) -> bool:
    """Whether the name still means this file: an agent that ends removes it."""
    try:
        status, own = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)
