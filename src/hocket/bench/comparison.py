"""Compare two libraries, or two files, point by point: the ratio of times, its interval, and a verdict.

Two libraries in one run share their rounds, so ratios are taken round by round: a disturbance that is longer than a
round affects both. Launches of the same job differ by some percent, because their memory lies at different places. More
rounds do not average this out. With 6 launches or more, the interval is therefore that of the median over launches of
each launch's median ratio, by order statistics. With many rows, each row is held to a stricter level (Bonferroni), so
that at most 5 % of comparisons of equal libraries report a slower row; `launches_needed` returns the launches for this
level. Samples of two different runs are not paired: they are compared by the quotient of two intervals, which is wider,
and need several launches.

Reference: Hunold, Carpen-Amarie, Reproducible MPI Benchmarking is Still Not as Easy as You Think (IEEE TPDS 27, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from hocket.bench.result import Result
from hocket.comm.policy import format_nbytes
from hocket.errors import InvalidArgument
from hocket.measure.statistics import MIN_VALUES, interval_of, quotients

Verdict = Literal["faster", "slower", "as fast", "too few samples", "too few launches"]
_FALSE_ALARMS = 0.05  # over all rows: the probability that equal libraries are called slower


@dataclass(frozen=True)
class ComparedRow:
    """The comparison of one point.

    Args:
        case: benchmark and size.
        first, second: median values in `unit`.
        unit: "us" or "MB/s".
        ratio: time of the second relative to the first.
        interval: interval of the median ratio.
        verdict: verdict on the second.
        is_paired: whether the ratios are of samples of the same rounds.
        num_launches: number of launches.
    """

    case: str
    first: float
    second: float
    unit: str
    ratio: float
    interval: tuple[float, float] | None
    verdict: Verdict
    is_paired: bool
    num_launches: int


@dataclass(frozen=True)
class RunComparison:
    """The comparison of all points that both sides have.

    Args:
        rows: one row per point.
        least: smallest difference that counts, as a part of the time.

    Examples:
        >>> from hocket.bench import Point, Result, compare
        >>> first = Result(Point("barrier", "shm", 0), 2, (2e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> second = Result(Point("barrier", "shm", 0), 2, (3e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> comparison = compare([first], [second], paired=True)
        >>> comparison.is_judged, comparison.is_slower
        (True, True)
    """

    rows: tuple[ComparedRow, ...]
    least: float

    @property
    def is_slower(self) -> bool:
        """Whether the second is slower in any row."""
        return any(row.verdict == "slower" for row in self.rows)

    @property
    def is_judged(self) -> bool:
        """Whether every row had enough samples and launches to be judged."""
        return not any(row.verdict.startswith("too few") for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"is_judged": self.is_judged, **asdict(self), "is_slower": self.is_slower}


def compare(first: Sequence[Result], second: Sequence[Result], *, least: float = 0.02, paired: bool) -> RunComparison:
    """Compare results of the same points.

    Args:
        first: reference results.
        second: results to judge.
        least: smallest difference that counts, as a part of the time.
        paired: whether sample i of both was taken in the same round.

    Raises:
        InvalidArgument: `first` and `second` have no point in common.

    Examples:
        >>> from hocket.bench import Point, Result, compare
        >>> first = Result(Point("barrier", "shm", 0), 2, (2e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> second = Result(Point("barrier", "shm", 0), 2, (3e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> (row,) = compare([first], [second], paired=True).rows
        >>> row.case, round(row.ratio, 2), row.verdict
        ('barrier 0 B', 1.5, 'slower')
    """
    has_ways = any(len({_way_of(each) for each in side}) > 1 for side in (first, second))
    by_case = {_case_of(each, has_ways): each for each in first}
    pairs = [(by_case[case], each) for each in second if (case := _case_of(each, has_ways)) in by_case]
    if not pairs:
        raise InvalidArgument(f"the sides share no point: the first has {len(first)} results, the second {len(second)}")
    confidence = row_confidence(len(pairs))
    rows = (_compare_pair(one, other, confidence, least, paired, names_way=has_ways) for one, other in pairs)
    return RunComparison(tuple(rows), least)


def launches_needed(num_rows: int, *, paired: bool) -> int:
    """Return the number of launches that judging `num_rows` rows needs."""
    confidence = row_confidence(num_rows) if paired else (1 + row_confidence(num_rows)) / 2
    return max(MIN_VALUES, math.ceil(1 - math.log2(1 - confidence)))


def row_confidence(num_rows: int) -> float:
    """Return the confidence of each row's interval; only one of its two ends can cause a false alarm."""
    return max(0.95, 1 - 2 * _FALSE_ALARMS / num_rows)


def _compare_pair(
    first: Result, second: Result, confidence: float, least: float, paired: bool, names_way: bool
) -> ComparedRow:
    if paired:
        values = second.over_launches(quotients(first.samples, second.samples))
        middle, interval = median(values), interval_of(values, confidence)
    else:
        first_values, second_values = (each.over_launches(each.samples) for each in (first, second))
        middle = median(second_values) / median(first_values)
        # Both medians must lie in their intervals at once, so each gets half of the error probability.
        first_interval, second_interval = (
            interval_of(each, (1 + confidence) / 2) for each in (first_values, second_values)
        )
        interval = (
            None
            if first_interval is None or second_interval is None
            else (second_interval[0] / first_interval[1], second_interval[1] / first_interval[0])
        )
    num_launches = min(first.num_launches, second.num_launches)
    verdict = _verdict(middle, interval, least)
    return ComparedRow(
        f"{first.point.benchmark} {format_nbytes(first.point.nbytes)}{f' {second.point.way}' if names_way else ''}",
        first.value,
        second.value,
        first.unit,
        middle,
        interval,
        verdict if paired or num_launches >= MIN_VALUES else "too few launches",
        paired,
        num_launches,
    )


def _verdict(ratio: float, interval: tuple[float, float] | None, least: float) -> Verdict:
    if interval is None:
        return "too few samples"
    if interval[0] > 1 and ratio > 1 + least:
        return "slower"
    if interval[1] < 1 and ratio < 1 / (1 + least):
        return "faster"
    return "as fast"


def _case_of(result: Result, has_ways: bool) -> tuple[object, ...]:
    point = result.point
    case = point.benchmark, point.nbytes, point.dtype, point.reduction, result.num_ranks
    return (*case, *_way_of(result)) if has_ways else case


def _way_of(result: Result) -> tuple[object, ...]:
    point = result.point
    return point.target, point.buffer, point.api, point.window, point.symmetric, point.place
