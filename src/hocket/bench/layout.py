"""The columns that output formats for people show in addition to the median."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResultLayout:
    """Additional columns of a table of results.

    Args:
        full: whether to show the minimum and the maximum time, and the number of timed operations.
        percentiles: percentiles of the operations' times to show, in percent.
    """

    full: bool = False
    percentiles: tuple[float, ...] = ()
