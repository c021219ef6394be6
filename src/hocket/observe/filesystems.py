"""Records what a program does through file systems of fsspec: objects in the cloud, archives, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def recorded_filesystem(filesystem: AbstractFileSystem) -> AbstractFileSystem:
    """Return a file system of fsspec that does what another one does, and records it.

    Each call that moves bytes is an event of I/O whose file is the URL: opening, reading and writing of files that are
    open, and the transfer of whole files, also of many at once. In `hocket.trace` the route of these events is
    "fsspec": what a file system does to carry out a call, such as reading a local file, is recorded beside it where
    hooks record the process, and only that is counted in `IoCompleteness`. User names, passwords and queries are left
    out of URLs. Asynchronous methods, whose names begin with an underscore, are not recorded.

    Args:
        filesystem: such as ``fsspec.filesystem("s3")``.

    Raises:
        InvalidArgument: `filesystem` is no file system of fsspec.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> fs = observe.recorded_filesystem(__import__("fsspec").filesystem("memory"))
        >>> fs.pipe_file("/weights", b"1234")
        >>> event = observe.events_in(hk.trace.find_recorders(os.getpid())[0].read(), 1)[0]
        >>> event.name, event.target, event.nbytes
        ('write', 'memory:///weights', 4)
    """
    try:
        from fsspec import AbstractFileSystem
    except ImportError:
        raise InvalidArgument("fsspec is needed for its file systems: pip install fsspec") from None
    if not isinstance(filesystem, AbstractFileSystem):
        raise InvalidArgument(f"a file system of fsspec is needed, not {type(filesystem).__qualname__}")
    from hocket.observe.fsspec_files import RecordedFileSystem

    return filesystem if isinstance(filesystem, RecordedFileSystem) else RecordedFileSystem(filesystem)
