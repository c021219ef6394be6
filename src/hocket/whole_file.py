"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


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
    part = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
