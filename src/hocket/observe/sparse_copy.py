"""Copies a recorder without its unused memory, which is most of it for a short process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK_NBYTES = 4096
_MOST_NBYTES = 1 << 20
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
            for begin, end in data_ranges(fd, size):
                copy.seek(begin)
                while copy.tell() < end:
                    part = os.pread(fd, min(_MOST_NBYTES, end - copy.tell()), copy.tell())
                    if not part:
                        break  # it has become shorter
                    write_sparsely(copy, part)
            copy.truncate(size)
    finally:
        os.close(fd)


def write_sparsely(file: BinaryIO, content: bytes) -> None:
    """Write at the present position of a new file, and move it on; blocks of zeros are left out.

    The caller ends with ``file.truncate(size)``, because the last blocks may be zeros.
    """
    for at in range(0, len(content), _BLOCK_NBYTES):
        block = content[at : at + _BLOCK_NBYTES]
        if block == _ZEROS[: len(block)]:
            file.seek(len(block), os.SEEK_CUR)
        else:
            file.write(block)


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the parts of a file that are no holes, whole where its file system does not say."""
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
