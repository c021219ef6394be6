"""Copies a recorder without the memory that nobody has used: most of it, for a process that did little."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK_NBYTES = 4096
_ZEROS = bytes(_BLOCK_NBYTES)


def copy_sparsely(source: Path, target: Path) -> None:
    """Copy a file; what is zero there takes no room in the copy, if its file system can do so.

    Args:
        source: the file, which another process may be writing.
        target: a new file.

    Raises:
        OSError: the file cannot be read, or the copy cannot be written.
    """
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with target.open("wb") as copy:
            size = os.fstat(fd).st_size
            for begin, end in _data(fd, size):
                for at in range(begin, end, _BLOCK_NBYTES):
                    block = os.pread(fd, min(_BLOCK_NBYTES, end - at), at)
                    if block != _ZEROS[: len(block)]:
                        copy.seek(at)
                        copy.write(block)
            copy.truncate(size)
    finally:
        os.close(fd)


def _data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes, whole where its file system does not say."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
            end = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.EINVAL:
                yield end, size
            elif error.errno != errno.ENXIO:  # no data from here on
                raise
            return
        yield begin - begin % _BLOCK_NBYTES, end
