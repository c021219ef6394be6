"""Layers into stages: contiguous parts, of which the largest is as small as can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument

_ROUNDING = 1e-13


def bottleneck_partition(costs: Sequence[float], num_parts: int) -> list[int]:
    """Cut a sequence into contiguous parts, none of them empty, so that the largest sum of a part is least.

    A bound is searched for by halving; whether parts within a bound are enough is found out by filling one after the
    other (Iqbal, "Approximate algorithms for the partitioning of parallel and pipelined programs", 1991). Exact but for
    rounding.

    Args:
        costs: of every layer, 0 or more.
        num_parts: 1 or more, at most as many as layers.

    Returns:
        Where parts begin, and the end: num_parts + 1 numbers.

    Raises:
        InvalidArgument: there are more parts than layers, or a cost is negative or no number.
    """
    values = np.asarray(costs, np.float64)
    if not 1 <= num_parts <= len(values):
        raise InvalidArgument(f"{len(values)} layers make 1 to {len(values)} stages, not {num_parts}")
    if not ((values >= 0) & np.isfinite(values)).all():
        raise InvalidArgument("the cost of a layer is 0 or more")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = max(float(values.max()), float(sums[-1]) / num_parts), float(sums[-1])
    best = _fill(sums, num_parts, high)
    while high - low > _ROUNDING * high:
        middle = low + (high - low) / 2
        if middle in (low, high):  # no number is between them
            break
        found = _fill(sums, num_parts, middle)
        if _largest(sums, found) <= middle * (1 + _ROUNDING):
            best, high = found, min(middle, _largest(sums, found))
        else:
            low = middle
    return best


def _fill(sums: NDArray[np.float64], num_parts: int, bound: float) -> list[int]:
    """Parts of at most `bound` as far as can be, each as long as can be with a layer left for every later part."""
    num_layers = len(sums) - 1
    cuts = [0]
    for part in range(1, num_parts):
        most = num_layers - (num_parts - part)
        end = int(np.searchsorted(sums, sums[cuts[-1]] + bound * (1 + _ROUNDING), "right")) - 1
        cuts.append(min(max(end, cuts[-1] + 1), most))
    return [*cuts, num_layers]


def _largest(sums: NDArray[np.float64], cuts: list[int]) -> float:
    return max(float(sums[last] - sums[first]) for first, last in pairwise(cuts))
