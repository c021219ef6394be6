"""Known content of messages, and reductions of it, to check the results of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

REDUCTIONS: Mapping[str, Callable[..., NDArray[np.generic]]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

_MAX_RANKS = 32  # up to which the sum of values up to 7 fits into 8 bits, the precision of bfloat16
_MAX_ONES = 256  # ranks that contribute 0 or 1 to a sum over more ranks; bfloat16 counts exactly up to here
_MAX_FACTORS = 8  # number of ranks that contribute factors of 2; the other ranks contribute 1


def pattern(count: int, dtype: str, rank: int, turn: int) -> NDArray[np.generic]:
    """Return the known content of a rank's message; it depends on the position, the rank and the turn.

    The values are small whole numbers, so that their sums are exact.

    Args:
        count: number of elements.
        dtype: element type; "bfloat16" gives float32 here, with values that bfloat16 represents exactly.
        rank: rank that sends the message.
        turn: number of the check.
    """
    positions = np.arange(count, dtype=np.int64)
    if dtype == "uint8":
        return ((positions * 7 + rank * 31 + turn * 13) % 251).astype(np.uint8)
    return ((positions * 3 + rank * 5 + turn) % 8).astype("float32" if dtype == "bfloat16" else dtype)


def to_reduce(content: NDArray[np.generic], reduction: str, rank: int, size: int) -> NDArray[np.generic]:
    """Limit a rank's content, so that its reduction is exact in every element type and order.

    Sums and products are exact for any number of ranks: beyond a number, ranks contribute 0 or 1.
    """
    if reduction == "prod":
        return content % 2 + 1 if rank < _MAX_FACTORS else content % 2 * 0 + 1
    return content if size <= _MAX_RANKS else content % 2 * (rank < _MAX_ONES)


def fold(xs: Sequence[NDArray[np.generic]], reduction: str) -> NDArray[np.generic]:
    """Return the reduction of the arrays of all ranks, in the order of ranks."""
    return reduce(REDUCTIONS[reduction], xs)
