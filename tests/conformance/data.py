"""The inputs of every rank, and the results by NumPy: vectorised, from (seed, data type, rank).

An element of a result depends only on the elements at the same index. So a pool per rank and its reduction are computed
once, and every case uses a window at its own offset: all cases have different data, so stale data is detected.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.generic]

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
_MOST_OFFSET = 509


def reductions_of(dtype: str) -> tuple[str, ...]:
    """Names of the reductions that the data type supports."""
    if dtype == "bool":
        return ("min", "max")
    return REDUCTIONS if dtype in FLOATS else REDUCTIONS[:-1]


def make_items(dtype: str, count: int, *seed: int) -> Array:
    """Draw `count` items: integers of all bits; floats of all kinds, among them NaN, infinities, -0.0, subnormals."""
    rng = np.random.default_rng([len(dtype), sum(map(ord, dtype)), *seed])
    kind = DTYPES[dtype]
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype not in FLOATS:
        return rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    info = ml_dtypes.finfo(kind)
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count)
    items = values.astype(kind)
    special = np.array(
        [np.nan, np.inf, -np.inf, -0.0, 0.0, info.smallest_subnormal, -info.smallest_subnormal, info.max, -info.max,
         info.smallest_normal, 1.0, -1.0]
    ).astype(kind)  # fmt: skip
    places = rng.random(count) < 0.05
    items[places] = special[rng.integers(0, special.size, int(places.sum()))]
    return items


def reduce_in_rank_order(arrays: list[Array], reduction: str) -> Array:
    """Expected result: in rank order, 16-bit floats in float32 rounded once, avg divided once, NaN propagates."""
    kind = arrays[0].dtype
    accumulator: DTypeLike = np.float32 if kind.itemsize == 2 and kind.kind in "fV" else kind
    with np.errstate(all="ignore"):
        result = arrays[0].astype(accumulator)
        for array in arrays[1:]:
            other = array.astype(accumulator)
            if reduction in ("sum", "avg"):
                result = result + other
            elif reduction == "prod":
                result = result * other
            else:
                better = other < result if reduction == "min" else other > result
                result = np.where(better | (other != other), other, result)
        if reduction == "avg":
            result = result / np.asarray(len(arrays), accumulator)
        return result.astype(kind)


class Pool:
    """The items of all ranks of one data type, and their reductions."""

    def __init__(self, dtype: str, num_ranks: int, most_items: int, seed: int = 0) -> None:
        self.ranks = [make_items(dtype, most_items + _MOST_OFFSET, seed, rank) for rank in range(num_ranks)]
        self._reduced: dict[str, Array] = {}

    def reduced(self, reduction: str) -> Array:
        if reduction not in self._reduced:
            self._reduced[reduction] = reduce_in_rank_order(self.ranks, reduction)
        return self._reduced[reduction]

    @staticmethod
    def offset(case: int) -> int:
        return case * 61 % _MOST_OFFSET
