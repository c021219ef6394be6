"""Samples of many contenders, taken until the median of each is known well enough, or time is up."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from hocket.errors import CommTimeout, InvalidArgument
from hocket.measure.contender import Key
from hocket.measure.core_factor import CoreProbe
from hocket.measure.machine import foreign_busy, usage
from hocket.measure.rounds import OnRound, calibrate
from hocket.measure.runner import Runner
from hocket.measure.statistics import MIN_VALUES, median_interval
from hocket.measure.windows import calls_in_time

_SLACK = 1.5  # of a window, in what a call takes
_LEAST_SLACK_S = 20e-6
_MOST_WINDOWS = 100  # of a sample: what is gained by more is less than what many samples gain
_MOST_LATE = 0.25  # of the windows; with more of them late, windows become longer
_LONGEST_PERIOD_S = 10.0


@dataclass(frozen=True)
class StopRule:
    """When there are enough samples.

    Args:
        precision: half of the 95 % interval of the median, as a part of the median.
        min_samples: of each contender, at least.
        max_samples: at most.
        time_limit_s: seconds after which no further round starts.
        min_sample_s: that one sample takes at least.
        iterations: of a sample; None: as many as take that long.
        together: every contender is measured until there is enough of all, so that the samples of a round belong
            together whatever their case; otherwise those of a case do.
        seed: of the order within rounds; the same on all ranks.
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
            raise InvalidArgument(f"the precision is between 0 and 1, not {self.precision}")
        if self.iterations is not None and self.iterations < 1:
            raise InvalidArgument(f"a sample has 1 iteration or more, not {self.iterations}")
        if not MIN_VALUES <= self.min_samples <= self.max_samples:
            raise InvalidArgument(
                f"samples are at least {MIN_VALUES} and at most {self.max_samples}, not {self.min_samples}: with fewer "
                "there is no interval of the median"
            )


@dataclass
class Series:
    """What was seen of one contender.

    Args:
        iterations: in a sample.
        samples: seconds of one iteration, the longest of all ranks; one value a round.
        calls: of every call that was timed by itself, the seconds that it took, by rank; empty for loops.
        num_late: calls that were dropped because a rank began them too late.
    """

    iterations: int
    samples: list[float] = field(default_factory=list)
    calls: list[tuple[float, ...]] = field(default_factory=list)
    num_late: int = 0

    @property
    def median(self) -> float:
        """Of the samples."""
        return median(self.samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the median; None for fewer than 6 samples."""
        return median_interval(self.samples) if len(self.samples) >= MIN_VALUES else None

    def is_enough(self, rule: StopRule) -> bool:
        """Whether the rule asks for no more of them."""
        if len(self.samples) < rule.min_samples:
            return False
        low, high = median_interval(self.samples)
        return len(self.samples) >= rule.max_samples or (high - low) / 2 <= rule.precision * self.median


@dataclass(frozen=True)
class SeriesMeasurement:
    """All that was measured.

    Args:
        series: of each contender.
        core_factors: one a round.
        foreign_busy: share of all CPUs' time that others' work took meanwhile, 0 to 1.
    """

    series: Mapping[Key, Series]
    core_factors: tuple[float, ...]
    foreign_busy: float


def measure_series(
    runner: Runner,
    rule: StopRule,
    windowed: Collection[Key] = (),
    *,
    on_round: OnRound | None = None,
    on_series: Callable[[Mapping[Key, Series]], object] | None = None,
) -> SeriesMeasurement:
    """Measure all contenders of a runner, interleaved; the contenders of a case until there is enough of all of them,
    so that the samples of one round belong together.

    Args:
        runner: the processes that do the work.
        rule: when there is enough.
        windowed: contenders whose calls are timed one by one, see `hocket.measure.windows`; the others are loops.
        on_round: called after each round with (contenders that are done, contenders, one line of state).
        on_series: called after each round with what was seen so far.

    Raises:
        InvalidArgument: there is nothing to measure, or a contender takes no time.
        CommTimeout: no call of a contender begins in time on all ranks, however long windows are.
    """
    if not runner.contenders:
        raise InvalidArgument("there is no contender to measure")
    series = {key: Series(rule.iterations or calibrate(runner, key, rule.min_sample_s)) for key in runner.contenders}
    periods: dict[Key, float] = {}
    order = random.Random(rule.seed)
    probe = CoreProbe(runner)
    factors: list[float] = []
    open_cases = list(dict.fromkeys(key.case for key in runner.contenders))
    before = usage(runner.pids)
    started = time.monotonic()
    while open_cases:
        order.shuffle(open_cases)
        for case in open_cases:
            keys = [key for key in runner.contenders if key.case == case]
            order.shuffle(keys)
            for key in keys:
                if key in windowed:
                    _take_windows(runner, key, series[key], periods, rule)
                else:
                    of_one = series[key]
                    of_one.samples.append(max(runner.run(key, of_one.iterations)) / of_one.iterations)
        factors.append(probe.measure())
        is_late = runner.agree(time.monotonic() - started) > rule.time_limit_s
        enough = {key for key in runner.contenders if series[key].is_enough(rule)}
        if not rule.together or len(enough) == len(series):
            open_cases = [case for case in open_cases if not all(key in enough for key in series if key.case == case)]
        if on_series:
            on_series(series)
        if on_round:
            on_round(len(enough), len(series), f"core factor {factors[-1]:.2f}")
        if is_late:
            break
    share = runner.agree(foreign_busy(before, usage(runner.pids)))
    return SeriesMeasurement(series, tuple(factors), share)


def _take_windows(runner: Runner, key: Key, series: Series, periods: dict[Key, float], rule: StopRule) -> None:
    """Take a sample of calls that are timed one by one; where too many are late, windows become longer."""
    if key not in periods:
        loop_s = max(runner.run(key, series.iterations)) / series.iterations
        periods[key] = _SLACK * loop_s + _LEAST_SLACK_S
        if rule.iterations is None:  # a window is longer than a call
            series.iterations = min(math.ceil(rule.min_sample_s / periods[key]), _MOST_WINDOWS)
    while True:
        calls = calls_in_time(runner.run_windows(key, series.iterations, periods[key]))
        num_late = series.iterations - len(calls)
        series.num_late += num_late
        if num_late > _MOST_LATE * series.iterations and periods[key] < _LONGEST_PERIOD_S:
            periods[key] *= 2
            series.iterations = max(1, math.ceil(min(series.iterations, rule.min_sample_s / periods[key])))
        if calls:
            break
        if periods[key] >= _LONGEST_PERIOD_S:
            raise CommTimeout(f"{key.name} ({key.case}): no call begins in time on all ranks")
    series.calls += calls
    series.samples.append(median(map(max, calls)))
