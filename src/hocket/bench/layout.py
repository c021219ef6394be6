"""What the forms that are read by people show beside the median."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResultLayout:
    """Further columns.

    Args:
        full: the shortest and the longest time, and the number of operations that were timed.
        percentiles: times that so many percent of the operations stayed below.
    """

    full: bool = False
    percentiles: tuple[float, ...] = ()
