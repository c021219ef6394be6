"""One call of a file system of fsspec as an event, and the callback by which transfers of many files become events."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self

from fsspec.callbacks import Callback

from hocket import _native

_ROUTE = _native.IO_ROUTE_NAMES.index("fsspec")
_UNKNOWN_OFFSET = 2**64 - 1
_USER = re.compile(r"(?<=://)[^/@]*@")


def clean_url(url: str) -> str:
    """Return a URL without what may be secret: user, password and query."""
    shown = _USER.sub("", url, count=1)
    return shown.split("?", 1)[0] if shown.startswith(("http:", "https:")) else shown


class FsspecCall:
    """A call that moves bytes of one file: a context manager.

    Args:
        kind: one of `hocket._native.IO_NAMES`.
        url: of the file.
        offset: where in the file; None: unknown.

    Attributes:
        nbytes: bytes that it has moved; set before the end.
    """

    def __init__(self, kind: str, url: str, offset: int | None = None) -> None:
        self.nbytes = 0
        place = _UNKNOWN_OFFSET if offset is None or offset < 0 else offset
        self._begun = _native.begin_io(clean_url(url), _native.IO_NAMES.index(kind), _ROUTE, place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Record that the call has ended."""
        code = 0 if error is None else (error.errno if isinstance(error, OSError) else None) or errno.EIO
        _native.end_io(self._begun, self.nbytes, code)


def record_many(kind: str, began: int, files: Iterable[tuple[str, int | None, int]]) -> None:
    """Record one call for many files, which are known after it.

    Args:
        kind: as above.
        began: ticks when it began.
        files: of each URL, offset and bytes.
    """
    for url, offset, nbytes in files:
        place = _UNKNOWN_OFFSET if offset is None or offset < 0 else offset
        begun = _native.begin_io(clean_url(url), _native.IO_NAMES.index(kind), _ROUTE, place)
        _native.end_io((begun[0], begun[1], began, *begun[3:]), nbytes, 0)


def local_size(path: object) -> int:
    """Return the bytes of a local file; 0 if there is none, or for a folder."""
    with suppress(OSError, TypeError):
        if os.path.isfile(path):  # type: ignore[arg-type]
            return os.path.getsize(path)  # type: ignore[arg-type]
    return 0


class TransferCallback(Callback):  # type: ignore[misc]
    """Hands all on to the user's callback, and makes the transfer of each file an event.

    Args:
        user: the user's callback.
        kind: "read" for transfers to this machine, "write" for those from it.
        url_of: returns the URL of a path in the file system.
    """

    def __init__(self, user: Callback, kind: str, url_of: Callable[[str], str]) -> None:
        super().__init__()
        self.user = user
        self._kind = kind
        self._url_of = url_of

    def set_size(self, size: Any) -> None:
        """Hand it on."""
        self.user.set_size(size)

    def absolute_update(self, value: Any) -> None:
        """Hand it on."""
        self.user.absolute_update(value)

    def relative_update(self, inc: Any = 1) -> None:
        """Hand it on."""
        self.user.relative_update(inc)

    def call(self, hook_name: str | None = None, **kwargs: Any) -> Any:
        """Hand it on."""
        return self.user.call(hook_name, **kwargs)

    def close(self) -> None:
        """Hand it on."""
        self.user.close()

    def branched(self, path_1: str, path_2: str, **kwargs: Any) -> Callback:
        """Begin the event of one file."""
        child = self.user.branched(path_1, path_2, **kwargs)
        remote, local = (path_1, path_2) if self._kind == "read" else (path_2, path_1)
        return _FileCallback(child, FsspecCall(self._kind, self._url_of(remote), 0), local, self._kind, self._url_of)


class _FileCallback(TransferCallback):
    """Of one file: ends its event."""

    def __init__(
        self, user: Callback, event: FsspecCall, local: object, kind: str, url_of: Callable[[str], str]
    ) -> None:
        super().__init__(user, kind, url_of)
        self._event = event
        self._local = local

    def __exit__(self, *error: Any) -> None:
        if error[1] is None:
            self._event.nbytes = local_size(self._local)
        self._event.end(error[1])
        self.close()
