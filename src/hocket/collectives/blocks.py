"""The sizes of the blocks of an operation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule
from hocket.collectives.semantics import parts_per_rank


def block_sizes(nbytes: int, num_blocks: int, itemsize: int = 1) -> NDArray[np.int64]:
    """Return the bytes of every block: whole items, balanced, the larger blocks first.

    The native executor uses the same rule (native/schedule/slots.cpp).
    """
    items, rest = divmod(nbytes // itemsize, num_blocks)
    return (items + (np.arange(num_blocks) < rest)).astype(np.int64) * itemsize


def sizes_of(schedule: Schedule, nbytes: int, itemsize: int = 1) -> NDArray[np.int64]:
    """Return the bytes of every block of an operation.

    Args:
        schedule: schedule of the operation.
        nbytes: size of the array; for collectives with one block per rank, of all blocks together.
        itemsize: bytes of an item, which is never split.
    """
    if schedule.collective == "barrier":
        return np.zeros(schedule.num_blocks, np.int64)
    if schedule.collective == "all_to_all":
        return np.tile(block_sizes(nbytes, schedule.num_ranks, itemsize), schedule.num_ranks)
    if schedule.collective in ("all_gather", "reduce_scatter"):
        parts = parts_per_rank(schedule)
        rank_sizes = block_sizes(nbytes, schedule.num_ranks, itemsize).tolist()
        return np.concatenate([block_sizes(each, parts, itemsize) for each in rank_sizes])
    return block_sizes(nbytes, schedule.num_blocks, itemsize)
