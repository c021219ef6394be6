"""Medians and ratios with intervals that assume nothing about how noise is distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hocket.errors import InvalidArgument

MIN_VALUES = 6  # with fewer, not even smallest to largest holds the median with 95 %


@dataclass(frozen=True)
class Ratio:
    """A median ratio and the 95 % interval of that median.

    Args:
        median: The median of the per-round ratios.
        low, high: The interval's ends; both are per-round ratios that were seen.
        rounds: How many rounds it stands on.
    """

    median: float
    low: float
    high: float
    rounds: int


def interval_rank(count: int, confidence: float = 0.95) -> int:
    """The largest k for which the k-th smallest to the k-th largest of `count` values hold the median.

    The median lies below the k-th smallest value with probability P(B < k), B binomial(count, 1/2); both sides
    together may have 1 - confidence. Reference: David, Nagaraja, Order Statistics (2003), section 7.1.

    Raises:
        InvalidArgument: `count` is too small for this confidence.
    """
    k = 0
    below = 1  # number of the 2**count outcomes with B <= k
    while 2 * below <= (1 - confidence) * 2**count:
        k += 1
        below += math.comb(count, k)
    if k == 0:
        raise InvalidArgument(f"{count} values are too few for a {confidence:.0%} interval of their median")
    return k


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The order-statistic interval of the median.

    Raises:
        InvalidArgument: Too few values (fewer than 6 at 95 %).
    """
    k = interval_rank(len(values), confidence)
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """How many times faster we are: theirs / ours, round by round.

    Args:
        ours, theirs: Seconds, one value a round, in the same order of rounds.

    Raises:
        InvalidArgument: Too few rounds.
    """
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    low, high = median_interval(ratios)
    return Ratio(median(ratios), low, high, len(ratios))
