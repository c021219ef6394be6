"""The ratio of the medians of two samples, with an interval that assumes nothing about their distributions."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.measure import median_interval

LEAST_VALUES = 8
"""Fewer have no interval."""
_CONFIDENCE = 0.975
"""Of each median; so both are in their intervals with at least 95 %."""


def ratio_interval(values: Sequence[float], base: Sequence[float]) -> tuple[float, float] | None:
    """Return an interval that contains the ratio of the medians with at least 95 %.

    Args:
        values: samples of the numerator.
        base: samples of the denominator.

    Returns:
        Both ends; None: too few samples, or the interval of the denominator contains 0.
    """
    if min(len(values), len(base)) < LEAST_VALUES:
        return None
    (low, high), (least, most) = (median_interval(each, _CONFIDENCE) for each in (values, base))
    return None if least <= 0 else (low / most, high / least)
