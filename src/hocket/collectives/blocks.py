"""How the bytes of an operation are divided between its blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule
from hocket.collectives.semantics import parts_per_rank


def block_sizes(nbytes: int, num_blocks: int, itemsize: int = 1) -> NDArray[np.int64]:
    """Return the bytes of every block: whole items, as equal as can be, the larger ones first.

    The native executor divides in the same way (native/schedule/slots.cpp).
    """
    items, rest = divmod(nbytes // itemsize, num_blocks)
    return (items + (np.arange(num_blocks) < rest)).astype(np.int64) * itemsize


def sizes_of(schedule: Schedule, nbytes: int, itemsize: int = 1) -> NDArray[np.int64]:
    """Return the bytes of every block of an operation.

    Args:
        schedule: of it.
        nbytes: of the array; where there is a block for every rank, of all of them together.
        itemsize: bytes that are not divided.
    """
    if schedule.collective == "barrier":
        return np.zeros(schedule.num_blocks, np.int64)
    if schedule.collective == "all_to_all":
        return np.tile(block_sizes(nbytes, schedule.num_ranks, itemsize), schedule.num_ranks)
    if schedule.collective in ("all_gather", "reduce_scatter"):
        parts = parts_per_rank(schedule)
        of_ranks = block_sizes(nbytes, schedule.num_ranks, itemsize).tolist()
        return np.concatenate([block_sizes(each, parts, itemsize) for each in of_ranks])
    return block_sizes(nbytes, schedule.num_blocks, itemsize)
