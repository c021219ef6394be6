"""Write a file completely or not at all, and check that a file can be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from hocket.errors import InvalidArgument

_MAKES = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that readers see the old file or the new file, never a part.

    The new file is first written beside the old one. Its name is random and must not exist, so no symbolic link of
    another user is followed.

    Args:
        path: the file; its folder must exist.
        write: function that writes to the path it is given.

    Raises:
        OSError: the file could not be written; no part is left.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # a folder makes `replace` raise
        raise FileExistsError(f"{path} is not a regular file, so it is not replaced")
    part = _beside(path)
    os.close(os.open(part, _MAKES, 0o666))
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_output(path: Path, *, is_replaced: bool = False) -> None:
    """Check that a file can be written, before its content is computed.

    Args:
        path: the file.
        is_replaced: whether another file replaces it, as `write_whole` does; else the file itself is written.

    Raises:
        InvalidArgument: the file cannot be written; the message says why.
    """
    folder = path.absolute().parent
    try:
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; name a file")
        if not folder.is_dir():
            raise InvalidArgument(f"{path} cannot be written: folder {folder} does not exist")
        is_irregular = path.exists() and not path.is_file()
        if is_replaced and is_irregular:
            raise InvalidArgument(f"{path} is not a regular file, but would be replaced by one")
        if is_replaced or not path.exists():
            part = _beside(path)
            os.close(os.open(part, _MAKES, 0o666))
            part.unlink()
        elif is_irregular:  # opening a pipe would end it for its reader
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _beside(path: Path) -> Path:
    name = os.fsdecode(os.fsencode(path.name)[:100])
    return path.with_name(f".{name}.{os.urandom(8).hex()}.part")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, so that readers see the old file or the new file, never a part.

    Bytes of names that are no UTF-8 are written as escapes.
    """
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))
