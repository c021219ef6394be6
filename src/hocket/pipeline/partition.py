"""Partition layers into stages: contiguous parts whose largest cost is minimal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument

_ROUNDING = 1e-13


def bottleneck_partition(costs: Sequence[float], num_parts: int) -> list[int]:
    """Partition a sequence into contiguous, non-empty parts with the smallest possible largest sum.

    A binary search finds the bound of a part; for each bound, parts are filled greedily (Iqbal, "Approximate algorithms
    for the partitioning of parallel and pipelined programs", 1991). The result is exact up to rounding.

    Args:
        costs: cost of every layer, 0 or more.
        num_parts: number of parts, from 1 to the number of layers.

    Returns:
        The start of every part and the end of the last: num_parts + 1 numbers.

    Raises:
        InvalidArgument: there are more parts than layers, or a cost is negative or not finite.

    Examples:
        >>> hk.pipeline.bottleneck_partition([1, 1, 1, 5, 1, 1], num_parts=3)
        [0, 3, 4, 6]
    """
    values = np.asarray(costs, np.float64)
    if not 1 <= num_parts <= len(values):
        raise InvalidArgument(f"{len(values)} layers can be split into 1 to {len(values)} stages, not {num_parts}")
    wrong = values[~((values >= 0) & np.isfinite(values))]
    if wrong.size:
        raise InvalidArgument(f"the cost of a layer must be 0 or more and finite, got {wrong[0]}")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = max(float(values.max()), float(sums[-1]) / num_parts), float(sums[-1])
    best = _fill(sums, num_parts, high)
    while high - low > _ROUNDING * high:
        middle = low + (high - low) / 2
        if middle in (low, high):  # adjacent floats
            break
        cuts = _fill(sums, num_parts, middle)
        if _largest(sums, cuts) <= middle * (1 + _ROUNDING):
            best, high = cuts, min(middle, _largest(sums, cuts))
        else:
            low = middle
    return best


def _fill(sums: NDArray[np.float64], num_parts: int, bound: float) -> list[int]:
    """Fill parts greedily up to `bound`, with at least one layer for each part; the last part takes the rest."""
    num_layers = len(sums) - 1
    cuts = [0]
    for part in range(1, num_parts):
        most = num_layers - (num_parts - part)
        end = int(np.searchsorted(sums, sums[cuts[-1]] + bound * (1 + _ROUNDING), "right")) - 1
        cuts.append(min(max(end, cuts[-1] + 1), most))
    return [*cuts, num_layers]


def _largest(sums: NDArray[np.float64], cuts: list[int]) -> float:
    return max(float(sums[last] - sums[first]) for first, last in pairwise(cuts))
