"""Files that are written whole or not at all, and the check that one can be written at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from hocket.errors import InvalidArgument

_MAKES = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    It is written beside it first, under a name that nobody can guess and that did not exist: a link that somebody put
    there is not followed.

    Args:
        path: of the file; its folder exists.
        write: writes to the path that it is given.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # which nothing replaces
        raise FileExistsError(f"{path} is not a regular file, and is not replaced by one")
    part = _beside(path)
    os.close(os.open(part, _MAKES, 0o666))
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_output(path: Path, *, is_replaced: bool = False) -> None:
    """Check that a file can be written, before anything is done for its content.

    Args:
        path: of the file.
        is_replaced: whether another file takes its place, as by `write_whole`; otherwise it is written itself.

    Raises:
        InvalidArgument: it cannot; says why.
    """
    folder = path.absolute().parent
    try:
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; name a file")
        if not folder.is_dir():
            raise InvalidArgument(f"there is no folder {folder}")
        is_irregular = path.exists() and not path.is_file()
        if is_replaced and is_irregular:
            raise InvalidArgument(f"{path} is not a regular file, and would be replaced by one")
        if is_replaced or not path.exists():
            part = _beside(path)
            os.close(os.open(part, _MAKES, 0o666))
            part.unlink()
        elif is_irregular:  # whoever reads a pipe would see its end
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _beside(path: Path) -> Path:
    name = os.fsdecode(os.fsencode(path.name)[:100])
    return path.with_name(f".{name}.{os.urandom(8).hex()}.part")
