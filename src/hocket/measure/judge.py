"""Which rows hold: a target is reached by the median, and 0.9 of it by the lower end of the median's interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hocket.errors import InvalidArgument
from hocket.measure.contender import Key
from hocket.measure.rounds import AGAIN, Measurement, Round
from hocket.measure.statistics import Ratio, interval_of, quotients, ratio

MIN_ROUNDS = 9
MAX_FOREIGN_BUSY = 0.25  # share of all CPUs' time; above it nothing is judged
LOW_END = 0.9  # of the target, for the lower end of the interval
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Comparison:
    """A row to be: one contender of ours against the fastest of some rivals.

    Args:
        case: The contenders' case.
        ours: Name of our contender.
        rivals: Names of the rivals' forms; the one with the smallest median time is compared with.
        target: How many times faster than it we want to be; None compares without a target.
        needs_cores: Only rounds with full cores count.
        label: Shown for the case; None shows the case's name.
        unit: Of the times shown: "s", "ms", "us" or "ns".

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
    """One judged comparison, as it stands in a report.

    Args:
        case, rival: What was done, and by whom we are measured.
        ours, theirs: Median times per iteration.
        unit: Of both.
        ratio: Median of theirs / ours round by round; above 1 we are faster.
        interval: 95 % interval of that median; None with fewer than 6 rounds.
        target: Ratio wanted, or None.
        holds: None if there is no target or it cannot be judged.

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
        """True for a target about which nothing can be said."""
        return self.target is not None and self.holds is None


def judge(measurement: Measurement, comparison: Comparison) -> Row:
    """Compares and judges.

    A row that needs full cores uses the rounds that had them. Where these are fewer than 9, or others kept the
    machine busy, the row shows the figures of all rounds and judges nothing.

    Raises:
        InvalidArgument: A contender or unit of the comparison does not exist, or there is no rival.

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
        raise InvalidArgument(f"a comparison needs a rival and a unit out of {', '.join(UNITS)}: {comparison}")
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
    """A row of two numbers that are not compared round by round, so that their ratio has no interval.

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
    """Compares what is not one contender's times but was made of them, such as sums, or stands beside them.

    Args:
        case, rival: As they are shown.
        ours, theirs: Seconds, by round.
        values: What the target is about, by round; None: theirs / ours.
        target: As of a comparison.
        can_be_judged: Whether the measurement says anything.
        unit: Of the times shown.

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
    """Whether a ratio reaches a target: the median all of it, the interval's lower end 0.9 of it."""
    return seen.median >= target and seen.low >= LOW_END * target


def null_rows(measurement: Measurement, unit: str = "us") -> tuple[Row, ...]:
    """The A/A rows: each case's first contender against itself, if it ran twice; what differs from 1 is noise.

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
    """The ratio theirs / ours of any two contenders, over all rounds or those with full cores.

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
