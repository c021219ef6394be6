"""What a run of benchmarks is asked for, and how its points are measured by whoever runs them."""

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
    """What is to be measured.

    Args: as of `hocket.bench.run_points`.
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
class Measured:
    """What was measured.

    Args:
        series: of all that could be.
        launches: of each, how many samples every launch of the jobs gave.
        left_out: of what could not: case and way, and why.
        warnings: what a reader has to know.
    """

    series: SeriesMeasurement
    launches: Mapping[Key, Sequence[int]] = field(default_factory=dict)
    left_out: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()


def join(launches: Sequence[Measured]) -> Measured:
    """Return what several launches of the same jobs gave, together; all of them are held to the longest warnings."""
    first = launches[0]
    keys = [key for key in first.series.series if all(key in each.series.series for each in launches)]
    of_key = {key: [each.series.series[key] for each in launches] for key in keys}
    series = {
        key: Series(
            parts[-1].iterations,
            [value for part in parts for value in part.samples],
            [call for part in parts for call in part.calls],
            sum(part.num_late for part in parts),
        )
        for key, parts in of_key.items()
    }
    factors = tuple(factor for each in launches for factor in each.series.core_factors)
    foreign_busy = max(each.series.foreign_busy for each in launches)
    return Measured(
        SeriesMeasurement(series, factors, foreign_busy),
        {key: [len(part.samples) for part in parts] for key, parts in of_key.items()},
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
    """Measure the points that a runner has.

    Args:
        runner: of processes that hold them.
        request: what is asked for.
        check: looks at the result of a point, with the content of a turn.
        on_round: as of `measure_series`.
        on_results: gets what was seen so far, after each round.
    """
    chosen = random.Random(request.rule.seed)  # the same on all ranks
    points = request.points

    def after_round(series: Mapping[Key, Series]) -> None:
        if request.validates:
            key = chosen.choice(runner.contenders)
            check(key._replace(name=key.name.partition(" [")[0]), chosen.randrange(1, 1000))  # of a part, the whole
        if on_results is not None:
            on_results([Result.of(each, request.num_ranks, series) for each in points if each.key in series])

    windowed = {each.key for each in points if request.synchronised and find_benchmark(each.benchmark).is_windowed}
    beside = {share: each.key for each in points if (share := each.part_key(BEGIN)) in runner.contenders}
    return measure_series(runner, request.rule, windowed, beside=beside, on_round=on_round, on_series=after_round)
