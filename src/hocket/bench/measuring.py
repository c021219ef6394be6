"""The request and the result of a run of benchmarks, and the measurement of its points by any runner."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hocket.bench.point import Point
from hocket.bench.registry import find_benchmark
from hocket.bench.result import BEGIN, Result
from hocket.bench.targets import Target
from hocket.measure import Key, Runner, Series, SeriesMeasurement, StopRule, measure_series
from hocket.measure.rounds import OnRound

OnResults = Callable[[Sequence[Result]], object]


@dataclass(frozen=True)
class Request:
    """The request of a run of benchmarks.

    Args: as in `hocket.bench.run_points`.
    """

    points: Sequence[Point]
    targets: Sequence[Target]
    num_ranks: int
    rule: StopRule
    synchronised: bool = True
    validates: bool = True
    num_warm_up: int = 0
    num_launches: int = 1


@dataclass(frozen=True)
class PointsMeasurement:
    """The measurement of a list of points.

    Args:
        series: samples of all points that could be measured.
        launches: number of samples of each launch of the jobs, by point.
        left_out: case and way of each point that could not be measured, with the reason.
        warnings: warnings for readers of the results.
    """

    series: SeriesMeasurement
    launches: Mapping[Key, Sequence[int]] = field(default_factory=dict)
    left_out: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()


def join(launches: Sequence[PointsMeasurement]) -> PointsMeasurement:
    """Join the measurements of several launches of the same jobs: samples in order of launches, each warning once.

    Only points that all launches measured are kept. The share of other programs is the largest of all launches.
    """
    first = launches[0]
    keys = [key for key in first.series.series if all(key in each.series.series for each in launches)]
    by_key = {key: [each.series.series[key] for each in launches] for key in keys}
    series = {
        key: Series(
            parts[-1].iterations,
            [value for part in parts for value in part.samples],
            [call for part in parts for call in part.calls],
            sum(part.num_late for part in parts),
        )
        for key, parts in by_key.items()
    }
    factors = tuple(factor for each in launches for factor in each.series.core_factors)
    foreign_busy = max(each.series.foreign_busy for each in launches)
    return PointsMeasurement(
        SeriesMeasurement(series, factors, foreign_busy),
        {key: [len(part.samples) for part in parts] for key, parts in by_key.items()},
        list(dict.fromkeys(line for each in launches for line in each.left_out)),
        list(dict.fromkeys(line for each in launches for line in each.warnings)),
    )


def measure_points(
    runner: Runner,
    request: Request,
    check: Callable[[Key, int], object],
    on_round: OnRound | None,
    on_results: OnResults | None,
) -> SeriesMeasurement:
    """Measure the points whose contenders a runner has.

    Args:
        runner: the processes with the contenders.
        request: the request of the run.
        check: checks the result of a point, given its key and the number that selects the content.
        on_round: progress callback, as in `measure_series`.
        on_results: called after each round with the results so far.
    """
    random_source = random.Random(request.rule.seed)  # equal seeds: all ranks check the same points
    points = request.points

    def after_round(series: Mapping[Key, Series]) -> None:
        if request.validates:
            key = random_source.choice(runner.contenders)
            # Parts have no check of their own: check the whole operation.
            check(key._replace(name=key.name.partition(" [")[0]), random_source.randrange(1, 1000))
        if on_results is not None:
            on_results([Result.of(each, request.num_ranks, series) for each in points if each.key in series])

    windowed = {each.key for each in points if request.synchronised and find_benchmark(each.benchmark).is_windowed}
    beside = {share: each.key for each in points if (share := each.part_key(BEGIN)) in runner.contenders}
    return measure_series(runner, request.rule, windowed, beside=beside, on_round=on_round, on_series=after_round)
