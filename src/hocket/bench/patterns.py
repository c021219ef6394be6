"""Content by which a result is known to be right, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument

REDUCTIONS: Mapping[str, Callable[..., NDArray[np.generic]]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

_MOST_RANKS = 32  # that add up to 7 each: 8 bits, which bfloat16 has
_MOST_FACTORS = 8  # of 2


def pattern(count: int, dtype: str, rank: int, turn: int) -> NDArray[np.generic]:
    """Return what a rank gives, of every position, rank and turn something else.

    Small whole numbers, whose sums are exact.

    Args:
        count: of elements.
        dtype: of elements; "bfloat16" is float32 here, and exact.
        rank: whose.
        turn: of the check.
    """
    places = np.arange(count, dtype=np.int64)
    if dtype == "uint8":
        return ((places * 7 + rank * 31 + turn * 13) % 251).astype(np.uint8)
    return ((places * 3 + rank * 5 + turn) % 8).astype("float32" if dtype == "bfloat16" else dtype)


def to_reduce(content: NDArray[np.generic], reduction: str, rank: int, size: int) -> NDArray[np.generic]:
    """Return a rank's content such that its reduction is exact in every type and order: sums of up to 256 ranks, and
    products."""
    if reduction == "prod":
        return content % 2 + 1 if rank < _MOST_FACTORS else content % 2 * 0 + 1
    return content if size <= _MOST_RANKS else content % 2


def fold(xs: Sequence[NDArray[np.generic]], reduction: str) -> NDArray[np.generic]:
    """Return the reduction of all ranks' arrays, in their order."""
    return reduce(REDUCTIONS[reduction], xs)


def check_reduction(name: str) -> None:
    """Raise InvalidArgument where there is no such reduction."""
    if name not in REDUCTIONS:
        raise InvalidArgument(f"there is no reduction {name!r}; there are {', '.join(REDUCTIONS)}")
