"""Two ways, or two files, compared point by point: how many times as long, with an interval, and a verdict.

Rounds that both have taken belong together, so ratios are taken round by round: what disturbs the machine for longer
than a round disturbs both. Launches of the same job differ by some percent, because their memory lies elsewhere, which
no number of rounds averages out: with 6 launches or more the interval is that of the median over launches of each one's
median ratio, by order statistics. With many rows, each is held to a stricter level, so that all of them together call
equals slower in 5 % of comparisons at most (Bonferroni), which `launches_needed` says what it needs for. Samples of two
different runs do not belong together, and are compared by the quotient of two intervals, which is wider; of few
launches they say nothing.

Reference: Hunold, Carpen-Amarie, Reproducible MPI Benchmarking is Still Not as Easy as You Think (IEEE TPDS 27, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from hocket.bench.result import Result
from hocket.comm.policy import format_nbytes
from hocket.errors import InvalidArgument
from hocket.measure.statistics import MIN_VALUES, interval_of, quotients

Verdict = Literal["faster", "slower", "as fast", "too few samples", "too few launches"]
_FALSE_ALARMS = 0.05  # in all rows together: equals that are called slower


@dataclass(frozen=True)
class ComparedRow:
    """One point, by both.

    Args:
        case: what was done.
        first, second: in `unit`.
        unit: "us" or "MB/s".
        ratio: how many times as long the second takes.
        interval: of its median.
        verdict: of the second.
        is_paired: whether it stands on ratios of samples that belong together.
        num_launches: on how many launches it stands.
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
    """All points that both have.

    Args:
        rows: of them.
        least: a difference that is smaller is none, as a part of the time.

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
        """Whether the second is slower anywhere."""
        return any(row.verdict == "slower" for row in self.rows)

    @property
    def is_judged(self) -> bool:
        """Whether there was enough to judge every row."""
        return not any(row.verdict.startswith("too few") for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"is_judged": self.is_judged, **asdict(self), "is_slower": self.is_slower}


def compare(first: Sequence[Result], second: Sequence[Result], *, least: float = 0.02, paired: bool) -> RunComparison:
    """Compare results of the same points.

    Args:
        first: that the other ones are measured by.
        second: that is judged.
        least: a difference that is smaller is none, as a part of the time.
        paired: whether sample i of both was taken in the same round.

    Raises:
        InvalidArgument: they have no point in common.

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
        raise InvalidArgument("the two have measured nothing alike")
    confidence = row_confidence(len(pairs))
    rows = tuple(_row(one, other, confidence, least, paired) for one, other in pairs)
    if has_ways:
        rows = tuple(
            replace(row, case=f"{row.case} {each.point.way}") for row, (_, each) in zip(rows, pairs, strict=True)
        )
    return RunComparison(rows, least)


def launches_needed(num_rows: int, *, paired: bool) -> int:
    """Return how many launches it takes to judge so many rows."""
    confidence = row_confidence(num_rows) if paired else (1 + row_confidence(num_rows)) / 2
    return max(MIN_VALUES, math.ceil(1 - math.log2(1 - confidence)))


def row_confidence(num_rows: int) -> float:
    """Of each row's interval: what is beyond one of its ends is a false alarm."""
    return max(0.95, 1 - 2 * _FALSE_ALARMS / num_rows)


def _row(first: Result, second: Result, confidence: float, least: float, paired: bool) -> ComparedRow:
    if paired:
        values = second.over_launches(quotients(first.samples, second.samples))
        middle, interval = median(values), interval_of(values, confidence)
    else:
        ours, theirs = (each.over_launches(each.samples) for each in (first, second))
        middle = median(theirs) / median(ours)
        # Both medians in their intervals at once: half of what may be wrong to either.
        own, other = (interval_of(each, (1 + confidence) / 2) for each in (ours, theirs))
        interval = None if own is None or other is None else (other[0] / own[1], other[1] / own[0])
    num_launches = min(first.num_launches, second.num_launches)
    verdict = _verdict(middle, interval, least)
    return ComparedRow(
        f"{first.point.benchmark} {format_nbytes(first.point.nbytes)}",
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
