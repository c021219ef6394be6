"""Records the file I/O of this process, which was started without the hooks."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from hocket import _native
from hocket.errors import RecorderError
from hocket.observe.run import hooks_library

_lock = threading.Lock()
_num_users = 0


@contextmanager
def record_io() -> Iterator[None]:
    """Record the file I/O of this process inside a ``with`` block.

    Puts the hooks of `hocket observe run` into the running process: every library that is loaded, and those that it
    loads meanwhile, call them instead of the C library's functions. At the end everything is as it was. Blocks may
    overlap, also in several threads; the last one that ends takes the hooks out. In a process that `hocket observe
    run` has started with its layer "io" the block changes nothing.

    Not recorded: child processes that run another program, functions of the C library that a program has looked up by
    itself, and what `hocket observe run` does not see either.

    Raises:
        RecorderError: this build of hocket has no hooks, the recorder is off, the hooks are of another build, or the
            system does not let a process replace its functions.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with observe.record_io():
        ...     _ = open("recorded", "wb", buffering=0).write(b"three")
        >>> event = observe.events_in(hk.trace.find_recorders(os.getpid())[0].read(), 2)[0]
        >>> event.name, event.nbytes, event.target.endswith("/recorded")
        ('write', 5, True)
    """
    global _num_users
    with _lock:
        if _num_users == 0:
            _start()
        _num_users += 1
    try:
        yield
    finally:
        with _lock:
            _num_users -= 1
            if _num_users == 0:
                _hooks().hocket_stop_io()


def _start() -> None:
    recorder, build = _native.recorder_handle()
    code = _hooks().hocket_start_io(ctypes.c_void_p(recorder), build.encode())
    if code == errno.ENODEV:
        raise RecorderError("file I/O cannot be recorded: HOCKET_RECORDER=0 switches the recorder off")
    if code == errno.EACCES:
        raise RecorderError("file I/O cannot be recorded: this system does not let a process replace its functions")
    if code == errno.EINVAL:
        raise RecorderError(
            f"{hooks_library()} and this hocket ({build}) are not from the same build: install it again"
        )


@cache
def _hooks() -> ctypes.CDLL:
    path = hooks_library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise RecorderError(f"{path} cannot be loaded: {error}") from None
