"""Judge rows: a row holds if the median reaches the target, and the lower end of its interval 0.9 of the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hocket.errors import InvalidArgument
from hocket.measure.contender import Key
from hocket.measure.rounds import AGAIN, Measurement, Round
from hocket.measure.statistics import Ratio, interval_of, quotients, ratio

MIN_ROUNDS = 9
MAX_FOREIGN_BUSY = 0.25  # share of the CPU time; above it nothing is judged
LOW_END = 0.9  # part of the target that the lower end of the interval must reach
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Comparison:
    """A comparison to judge: one of our contenders against the fastest of some rivals.

    Args:
        case: The contenders' case.
        ours: Name of our contender.
        rivals: Names of the rivals' forms; the one with the smallest median time is used.
        target: Required ratio theirs / ours; None compares without a target.
        needs_cores: Only rounds with full cores count.
        label: Name of the case in reports; None: the case's own name.
        unit: Unit of the times in reports: "s", "ms", "us" or "ns".

    Examples:
        >>> comparison = hk.measure.Comparison("16 B", "shm", rivals=("mpich", "openmpi"), target=1.5)
        >>> comparison.unit
        'us'
    """

    case: str
    ours: str
    rivals: tuple[str, ...]
    target: float | None = None
    needs_cores: bool = True
    label: str | None = None
    unit: str = "us"


@dataclass(frozen=True)
class Row:
    """One judged comparison of a report.

    Args:
        case, rival: Name of the case, and of the rival.
        ours, theirs: Median times per iteration.
        unit: Unit of both times.
        ratio: Median of theirs / ours round by round; above 1, ours is faster.
        interval: 95 % interval of that median; None with fewer than 6 rounds.
        target: Required ratio, or None.
        holds: Whether the target is reached; None without a target, or if it cannot be judged.

    Examples:
        >>> row = hk.measure.computed("16 B", "mpich", ours=2.0, theirs=3.0, unit="us", target=1.2)
        >>> row.ratio, row.holds
        (1.5, True)
    """

    case: str
    rival: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    interval: tuple[float, float] | None
    target: float | None
    holds: bool | None

    @property
    def unjudged(self) -> bool:
        """Whether the row has a target that could not be judged."""
        return self.target is not None and self.holds is None


def judge(measurement: Measurement, comparison: Comparison) -> Row:
    """Compare contenders and judge the target.

    A row that needs full cores uses the rounds with full cores. With fewer than 9 of these, or on a machine that other
    programs kept busy, the row shows all rounds and is not judged.

    Raises:
        InvalidArgument: A contender or unit of the comparison does not exist, or it has no rival.

    Examples:
        >>> from hocket.measure import Comparison, Key, Measurement, Round
        >>> ours, theirs = Key("16 B", "shm"), Key("16 B", "mpich")
        >>> rounds = (Round({ours: 2e-6, theirs: 3e-6}, core_factor=2.0),) * 9
        >>> measurement = Measurement(rounds, {ours: 100, theirs: 100}, num_ranks=2, foreign_busy=0.0, full_cores=1.7)
        >>> row = hk.measure.judge(measurement, Comparison("16 B", "shm", ("mpich",), target=1.2))
        >>> row.rival, round(row.ratio, 2), row.holds
        ('mpich', 1.5, True)
    """
    rounds = measurement.full_core_rounds if comparison.needs_cores else measurement.rounds
    can_be_judged = len(rounds) >= MIN_ROUNDS and measurement.foreign_busy <= MAX_FOREIGN_BUSY
    if len(rounds) < MIN_ROUNDS:
        rounds = measurement.rounds
    if not comparison.rivals or comparison.unit not in UNITS:
        raise InvalidArgument(f"a comparison must have a rival and one of the units {', '.join(UNITS)}: {comparison}")
    ours = _times(rounds, Key(comparison.case, comparison.ours))
    by_rival = {name: _times(rounds, Key(comparison.case, name)) for name in comparison.rivals}
    rival = min(by_rival, key=lambda name: median(by_rival[name]))
    return judge_values(
        comparison.label or comparison.case,
        rival,
        ours,
        by_rival[rival],
        target=comparison.target,
        can_be_judged=can_be_judged,
        unit=comparison.unit,
    )


def computed(case: str, rival: str, ours: float, theirs: float, unit: str, target: float | None = None) -> Row:
    """Return a row of two numbers that were not measured round by round; their ratio has no interval.

    Examples:
        >>> row = hk.measure.computed("16 B", "mpich", ours=2.0, theirs=3.0, unit="us")
        >>> row.ratio, row.interval
        (1.5, None)
    """
    seen = theirs / ours
    return Row(case, rival, ours, theirs, unit, seen, None, target, None if target is None else seen >= target)


def judge_values(
    case: str,
    rival: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    values: Sequence[float] | None = None,
    target: float | None = None,
    can_be_judged: bool = True,
    unit: str = "us",
) -> Row:
    """Judge values that were computed from the times of contenders, for example sums.

    Args:
        case, rival: Names in the report.
        ours, theirs: Seconds, by round.
        values: The values that are judged, by round; None: theirs / ours.
        target: Required value, as in `Comparison`.
        can_be_judged: Whether the machine was quiet enough to judge.
        unit: Unit of the times in the report.

    Examples:
        >>> ours, theirs = [2e-6] * 9, [3e-6] * 9
        >>> row = hk.measure.judge_values("16 B", "mpich", ours, theirs, target=2.0)
        >>> round(row.ratio, 2), row.holds
        (1.5, False)
    """
    values = quotients(ours, theirs) if values is None else values
    middle, interval, holds = median(values), interval_of(values), None
    if target is not None and interval is not None and can_be_judged and len(values) >= MIN_ROUNDS:
        holds = meets(Ratio(middle, *interval, len(values)), target)
    scale = UNITS[unit]
    return Row(case, rival, median(ours) * scale, median(theirs) * scale, unit, middle, interval, target, holds)


def meets(seen: Ratio, target: float) -> bool:
    """Whether a ratio reaches a target: its median the whole target, its interval's lower end 0.9 of it."""
    return seen.median >= target and seen.low >= LOW_END * target


def null_rows(measurement: Measurement, unit: str = "us") -> tuple[Row, ...]:
    """Return the A/A rows: each case's first contender against itself, if it ran twice; a ratio other than 1 is noise.

    Examples:
        >>> from hocket.measure import Key, Measurement, Round
        >>> first, again = Key("16 B", "shm"), Key("16 B", "shm (again)")
        >>> rounds = (Round({first: 2e-6, again: 2e-6}, core_factor=2.0),) * 9
        >>> (row,) = hk.measure.null_rows(Measurement(rounds, {first: 100}, 2, foreign_busy=0.0, full_cores=1.7))
        >>> row.case, row.ratio
        ('16 B, 2 ranks, A/A', 1.0)
    """
    first: dict[str, str] = {}
    for case, name in measurement.iterations:
        first.setdefault(case, name)
    comparisons = (
        Comparison(case, name, (name + AGAIN,), label=f"{case}, {measurement.num_ranks} ranks, A/A", unit=unit)
        for case, name in first.items()
        if (case, name + AGAIN) in measurement.rounds[0].seconds
    )
    return tuple(judge(measurement, comparison) for comparison in comparisons)


def ratios(measurement: Measurement, ours: Key, theirs: Key, needs_cores: bool = False) -> Ratio:
    """Return the ratio theirs / ours of two contenders, over all rounds or over those with full cores.

    Raises:
        InvalidArgument: There are fewer than 6 such rounds, or a contender does not exist.

    Examples:
        >>> from hocket.measure import Key, Measurement, Round
        >>> ours, theirs = Key("16 B", "shm"), Key("16 B", "mpich")
        >>> rounds = (Round({ours: 2e-6, theirs: 4e-6}, core_factor=2.0),) * 6
        >>> measurement = Measurement(rounds, {ours: 100, theirs: 100}, 2, foreign_busy=0.0, full_cores=1.7)
        >>> hk.measure.ratios(measurement, ours, theirs).median
        2.0
    """
    rounds = measurement.full_core_rounds if needs_cores else measurement.rounds
    return ratio(_times(rounds, ours), _times(rounds, theirs))


def _times(rounds: Iterable[Round], key: Key) -> list[float]:
    try:
        return [round_.seconds[key] for round_ in rounds]
    except KeyError:
        raise InvalidArgument(f"no contender {key.name!r} was measured in case {key.case!r}") from None
