"""Medians and ratios with intervals that assume nothing about the distribution of noise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from hocket.errors import InvalidArgument

MIN_VALUES = 6  # with fewer, even the range from smallest to largest contains the median with less than 95 %
_DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95 % interval.

    Args:
        median: The median of the per-round ratios (`ratio`), or the ratio of the means (`mean_ratio`).
        low, high: The interval's ends.
        rounds: Number of rounds.

    Examples:
        >>> hk.measure.Ratio(median=1.5, low=1.4, high=1.6, rounds=9).verdict
        'faster'
        >>> hk.measure.Ratio(median=1.1, low=0.9, high=1.2, rounds=9).verdict
        'not distinguishable'
    """

    median: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> Literal["faster", "slower", "not distinguishable"]:
        """The verdict by the interval: "not distinguishable" if it contains 1."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "not distinguishable"


def interval_rank(count: int, confidence: float = 0.95) -> int:
    """Return the largest k for which the k-th smallest to the k-th largest of `count` values contain the median.

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
    """Return the interval of the median by order statistics.

    Raises:
        InvalidArgument: Too few values (fewer than 6 at 95 %).

    Examples:
        >>> hk.measure.median_interval([3, 1, 2, 6, 5, 4, 9, 8, 7])
        (2, 8)
    """
    k = interval_rank(len(values), confidence)
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]


def interval_of(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return `median_interval`, or None for too few values."""
    try:
        return median_interval(values, confidence)
    except InvalidArgument:
        return None


def range_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return `median_interval`, or the smallest and the largest value if there are too few values."""
    return interval_of(values) or (min(values), max(values))


def quotients(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return theirs / ours, round by round."""
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return how many times as fast ours is: the median of theirs / ours, round by round, with its interval.

    Args:
        ours, theirs: Seconds, one value per round, in the same order of rounds.

    Raises:
        InvalidArgument: Too few rounds.

    Examples:
        >>> ratio = hk.measure.ratio(ours=[1, 2, 1, 2, 1, 2], theirs=[2, 4, 2, 4, 2, 6])
        >>> ratio.median, ratio.low, ratio.high
        (2.0, 2.0, 3.0)
    """
    ratios = quotients(ours, theirs)
    return Ratio(median(ratios), *median_interval(ratios), len(ratios))


def mean_ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 20261126) -> Ratio:
    """Return how many times as fast ours is in the long run: mean of theirs / mean of ours, with its interval.

    The interval is a percentile bootstrap over whole rounds. Reference: Efron, Tibshirani, An Introduction to the
    Bootstrap (1993), section 13.3.

    Args:
        ours, theirs: Seconds, one value per round, in the same order of rounds.
        seed: Seed of the bootstrap.

    Raises:
        InvalidArgument: Too few rounds.

    Examples:
        >>> hk.measure.mean_ratio(ours=[1.0] * 6, theirs=[1.5] * 6).median
        1.5
    """
    pairs = list(zip(ours, theirs, strict=True))
    if len(pairs) < MIN_VALUES:
        raise InvalidArgument(f"an interval of a ratio of means needs {MIN_VALUES} rounds or more, not {len(pairs)}")
    draw = random.Random(seed)
    drawn = [draw.choices(pairs, k=len(pairs)) for _ in range(_DRAWS)]
    ratios = sorted(sum(their for _, their in each) / sum(our for our, _ in each) for each in drawn)
    edge = int(0.025 * _DRAWS)
    return Ratio(fmean(theirs) / fmean(ours), ratios[edge], ratios[-1 - edge], len(pairs))
