"""A recorder without its events: who owns it, names, and totals. It is what follows a process from another host."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from hocket.observe.sparse_copy import data_ranges
from hocket.trace.region import MAGIC, MOST_NBYTES, RINGS, ring_header_at

BLOCK_NBYTES = 4096
"""The first block is the header of the recorder (native/recorder/layout.hpp)."""
_EVENT_NBYTES = 64
_NBYTES_AT, _IMAGE_AT = 16, 48


@dataclass(frozen=True)
class RecorderHead:
    """What a recorder held outside of its rings.

    Args:
        image: random number of its program, `Owner.image`.
        nbytes: size of the whole recorder.
        blocks: by number, each of `BLOCK_NBYTES`; those that nobody has written are left out. The first block of the
            recorder comes last: whoever writes them in this order has the names before the header that counts them.
    """

    image: int
    nbytes: int
    blocks: dict[int, bytes]


def read_head(path: Path) -> RecorderHead | None:
    """Return the head of a recorder; None: it cannot be read, or is just being made.

    Its process may be writing it: the header is read first, so that all names that it counts are in the blocks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        size = min(os.fstat(fd).st_size, MOST_NBYTES)
        header = os.pread(fd, BLOCK_NBYTES, 0)
        if len(header) < BLOCK_NBYTES or not header.startswith(MAGIC):
            return None
        (nbytes,), (image,) = struct.unpack_from("<Q", header, _NBYTES_AT), struct.unpack_from("<Q", header, _IMAGE_AT)
        if not BLOCK_NBYTES <= nbytes <= MOST_NBYTES:
            return None
        in_rings = _blocks_of_rings(header)
        blocks: dict[int, bytes] = {}
        for begin, end in data_ranges(fd, size):
            for number in range(begin // BLOCK_NBYTES, -(-end // BLOCK_NBYTES)):
                if number and number not in in_rings and number not in blocks:
                    content = os.pread(fd, BLOCK_NBYTES, number * BLOCK_NBYTES)
                    blocks[number] = content.ljust(BLOCK_NBYTES, b"\0")
        blocks[0] = header
        return RecorderHead(image, nbytes, blocks)
    except OSError:
        return None
    finally:
        os.close(fd)


def _blocks_of_rings(header: bytes) -> set[int]:
    """Numbers of blocks that have events and nothing else."""
    found: set[int] = set()
    for number in range(len(RINGS)):
        offset, capacity = struct.unpack_from("<QQ", header, ring_header_at(number))
        end = min(offset + capacity * _EVENT_NBYTES, MOST_NBYTES)
        found.update(range(-(-offset // BLOCK_NBYTES), end // BLOCK_NBYTES))
    return found
