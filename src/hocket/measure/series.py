"""Take samples of many contenders until the median of each is precise enough, or the time limit is reached."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from hocket.errors import CommTimeout, InvalidArgument
from hocket.measure.contender import Key
from hocket.measure.core_factor import CoreProbe
from hocket.measure.machine import foreign_busy, usage
from hocket.measure.rounds import OnRound, calibrate
from hocket.measure.runner import Runner
from hocket.measure.statistics import MIN_VALUES, interval_of
from hocket.measure.windows import calls_in_time

_PROBE_EVERY_S = 0.25  # interval between measurements of the core factor
_LOOP_RUNS = 3  # loops that estimate the time of a call; the shortest counts
_ALIKE = 2.0  # contenders whose times differ by a smaller factor share windows
_SLACK = 1.5  # length of a window relative to the time of a call
_LEAST_SLACK_S = 20e-6
_MOST_WINDOWS = 100  # per sample: more samples gain more than more windows do
_MOST_LATE = 0.25  # share of late windows above which a sample is poor
_MOST_POOR = 3  # poor samples in a row before windows become longer
_LONGEST_PERIOD_S = 10.0


@dataclass(frozen=True)
class StopRule:
    """The rule that ends a measurement.

    Args:
        precision: required half width of the 95 % interval of the median, relative to the median.
        min_samples: minimum number of samples of each contender.
        max_samples: maximum number of samples of each contender.
        time_limit_s: seconds after which no new round starts.
        min_sample_s: minimum length of a sample in seconds.
        iterations: iterations of a sample; None: as many as `min_sample_s` needs.
        together: measure every contender until all of them have enough samples, so that the samples of a round can be
            compared across cases. Otherwise only the contenders of one case continue together.
        seed: seed of the order within rounds; the same on all ranks.

    Examples:
        >>> rule = hk.measure.StopRule(precision=0.05, time_limit_s=10.0)
        >>> rule.min_samples, rule.max_samples
        (9, 50)
    """

    precision: float = 0.02
    min_samples: int = 9
    max_samples: int = 50
    time_limit_s: float = 60.0
    min_sample_s: float = 0.01
    iterations: int | None = None
    together: bool = False
    seed: int = 20261123

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1:
            raise InvalidArgument(f"precision must be between 0 and 1, not {self.precision}")
        if self.iterations is not None and self.iterations < 1:
            raise InvalidArgument(f"iterations must be 1 or more, not {self.iterations}")
        if not MIN_VALUES <= self.min_samples <= self.max_samples:
            raise InvalidArgument(
                f"min_samples must be from {MIN_VALUES}, which an interval of the median needs, to max_samples "
                f"({self.max_samples}), not {self.min_samples}"
            )


@dataclass
class Series:
    """The samples of one contender.

    Args:
        iterations: iterations of a sample.
        samples: seconds of one iteration on the slowest rank; one value per round.
        calls: seconds of each call that was timed by itself, by rank; empty for loops.
        num_late: number of calls that were dropped because a rank began them too late.

    Examples:
        >>> series = hk.measure.Series(iterations=100, samples=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        >>> series.median, series.interval
        (3.5, (1.0, 6.0))
        >>> series.num_left(hk.measure.StopRule())
        3
    """

    iterations: int
    samples: list[float] = field(default_factory=list)
    calls: list[tuple[float, ...]] = field(default_factory=list)
    num_late: int = 0

    @property
    def median(self) -> float:
        """Median of the samples."""
        return median(self.samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the median; None for fewer than 6 samples."""
        return interval_of(self.samples)

    @property
    def precision(self) -> float:
        """Half width of the interval relative to the median; infinite without an interval."""
        if self.interval is None:
            return math.inf
        low, high = self.interval
        return (high - low) / 2 / self.median

    def is_enough(self, rule: StopRule) -> bool:
        """Whether the rule requires no more samples."""
        return self.num_left(rule) == 0

    def num_left(self, rule: StopRule) -> int:
        """Estimate how many more samples the rule requires: intervals shrink with the root of the number of samples."""
        count = len(self.samples)
        if count < rule.min_samples:
            return rule.min_samples - count
        if count >= rule.max_samples or self.precision <= rule.precision:
            return 0
        required = count * (self.precision / rule.precision) ** 2
        return max(1, math.ceil(min(rule.max_samples, required)) - count)


@dataclass(frozen=True)
class SeriesMeasurement:
    """The samples of all contenders.

    Args:
        series: the samples of each contender.
        core_factors: core factors, at most four per second.
        foreign_busy: share of the CPU time, 0 to 1, that other programs took meanwhile.

    Examples:
        >>> key = hk.measure.Key("16 B", "shm")
        >>> series = {key: hk.measure.Series(iterations=100, samples=[2.0, 3.0, 4.0])}
        >>> measured = hk.measure.SeriesMeasurement(series, core_factors=(1.9,), foreign_busy=0.0)
        >>> measured.series[key].median
        3.0
    """

    series: Mapping[Key, Series]
    core_factors: tuple[float, ...]
    foreign_busy: float


def measure_series(
    runner: Runner,
    rule: StopRule,
    windowed: Collection[Key] = (),
    *,
    beside: Mapping[Key, Key] = MappingProxyType({}),
    on_round: OnRound | None = None,
    on_series: Callable[[Mapping[Key, Series]], object] | None = None,
) -> SeriesMeasurement:
    """Measure all contenders of a runner, interleaved.

    The contenders of a case continue until all of them have enough samples, so that the samples of one round can be
    compared.

    Args:
        runner: the processes with the contenders.
        rule: the rule that ends the measurement.
        windowed: contenders whose calls are timed one by one, see `hocket.measure.windows`; the others run in loops.
        beside: contenders that are measured along with another one of their case, with as many iterations; the rule
            does not apply to them.
        on_round: progress callback. It is called before each calibration and after each round, with the number of
            contenders that have enough samples and the number of all; on a `Team`, on every rank.
        on_series: called after each round with the samples so far.

    Raises:
        InvalidArgument: the runner has no contender, or a contender takes no measurable time.
        CommTimeout: no call of a contender begins in time on all ranks, even in the longest windows.

    Examples:
        >>> contender = hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))
        >>> rule = hk.measure.StopRule(min_samples=6, max_samples=6, min_sample_s=1e-4)
        >>> measured = hk.measure.measure_series(hk.measure.Team([contender]), rule)
        >>> len(measured.series[contender.key].samples)
        6
    """
    if not runner.contenders:
        raise InvalidArgument("the runner must have at least one contender, not 0")
    series: dict[Key, Series] = {}
    judged = [key for key in runner.contenders if key not in beside]
    for key in judged:
        if on_round:
            on_round(0, len(judged), f"calibrating {key.case}, {key.name}")
        series[key] = Series(rule.iterations or calibrate(runner, key, rule.min_sample_s))
    for key, other in beside.items():
        series[key] = Series(series[other].iterations)
    windows: dict[Key, _Windows] = {}
    for case in dict.fromkeys(key.case for key in runner.contenders if key in windowed):  # in one order on all ranks
        of_case = [key for key in runner.contenders if key.case == case and key in windowed]
        windows |= _windows_of_case(runner, {key: series[key].iterations for key in of_case}, rule)
    order = random.Random(rule.seed)
    probe = CoreProbe(runner)
    factors: list[float] = []
    next_probe_s = 0.0
    open_cases = list(dict.fromkeys(key.case for key in runner.contenders))
    before = usage(runner.pids)
    started = time.monotonic()
    num_rounds = 0
    while open_cases:
        num_rounds += 1
        order.shuffle(open_cases)
        for case in open_cases:
            keys = [key for key in runner.contenders if key.case == case]
            order.shuffle(keys)
            for key in keys:
                if key in windows:
                    _take_windows(runner, key, series[key], windows[key], rule)
                else:
                    of_one = series[key]
                    of_one.samples.append(max(runner.run(key, of_one.iterations)) / of_one.iterations)
        elapsed_s = runner.agree(time.monotonic() - started)
        if elapsed_s >= next_probe_s:
            factors.append(probe.measure())
            next_probe_s = elapsed_s + _PROBE_EVERY_S
        enough = {key for key in judged if series[key].is_enough(rule)}
        if not rule.together or len(enough) == len(judged):
            open_cases = [case for case in open_cases if not all(key in enough for key in judged if key.case == case)]
        if on_series:
            on_series(series)
        if on_round:
            unsure = [series[key] for key in judged if key.case in open_cases]
            num_left = max((each.num_left(rule) for each in unsure), default=0)
            pace_s = elapsed_s / num_rounds
            left_s = min(num_left * pace_s, max(0.0, rule.time_limit_s - elapsed_s))
            on_round(len(enough), len(judged), _least_known({key: series[key] for key in judged}), left_s)
        if elapsed_s > rule.time_limit_s:
            break
    share = runner.agree(foreign_busy(before, usage(runner.pids)))
    return SeriesMeasurement(series, tuple(factors), share)


def _least_known(series: Mapping[Key, Series]) -> str:
    """Name the contender with the worst precision, and its precision."""
    key = max(series, key=lambda key: series[key].precision)
    if math.isinf(series[key].precision):
        return f"{len(series[key].samples)} samples each"
    return f"least known {key.case}, {key.name}: ±{series[key].precision:.0%}"


@dataclass
class _Windows:
    """The windows in which calls are timed one by one.

    Contenders of a case that take about as long share them, since a call takes longer after a longer pause.

    Args:
        period_s: seconds from the beginning of a window to that of the next one.
        count: windows of a sample.
        num_poor: samples in a row in which many calls were late.
    """

    period_s: float
    count: int
    num_poor: int = 0

    def adapt(self, num_late: int, sample_s: float) -> None:
        """Make windows longer if many calls are late in several samples: once, a rank may just have lost its CPU."""
        self.num_poor = self.num_poor + 1 if num_late > _MOST_LATE * self.count else 0
        if self.num_poor == _MOST_POOR and self.period_s < _LONGEST_PERIOD_S:
            self.num_poor = 0
            self.period_s *= 2
            self.count = max(1, math.ceil(min(self.count, sample_s / self.period_s)))


def _windows_of_case(runner: Runner, iterations: Mapping[Key, int], rule: StopRule) -> dict[Key, _Windows]:
    """Return the windows of contenders of one case, given the iterations of a sample of each."""
    longest = {key: min(max(runner.run(key, n)) / n for _ in range(_LOOP_RUNS)) for key, n in iterations.items()}
    groups: list[list[Key]] = []
    for key in sorted(longest, key=longest.__getitem__):
        if groups and longest[key] <= _ALIKE * longest[groups[-1][-1]]:
            groups[-1].append(key)
        else:
            groups.append([key])
    found: dict[Key, _Windows] = {}
    for group in groups:
        period_s = _SLACK * longest[group[-1]] + _LEAST_SLACK_S
        count = rule.iterations or min(math.ceil(rule.min_sample_s / period_s), _MOST_WINDOWS)
        found |= dict.fromkeys(group, _Windows(period_s, count))
    return found


def _take_windows(runner: Runner, key: Key, series: Series, windows: _Windows, rule: StopRule) -> None:
    """Take a sample of calls that are timed one by one; make windows longer if too many calls are late."""
    while True:
        series.iterations = windows.count
        calls = calls_in_time(runner.run_windows(key, windows.count, windows.period_s))
        num_late = windows.count - len(calls)
        series.num_late += num_late
        windows.adapt(num_late, rule.min_sample_s)
        if calls:
            break
        if windows.num_poor >= _MOST_POOR:
            raise CommTimeout(f"{key.name} ({key.case}): no call begins in time on all ranks")
    series.calls += calls
    series.samples.append(median(map(max, calls)))
