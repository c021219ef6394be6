"""Runs points: all of them interleaved, each over its library, with results that were looked at."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hocket.bench.launchers import LAUNCHERS
from hocket.bench.point import Point
from hocket.bench.rank import specification
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result
from hocket.bench.startup import measure_startup
from hocket.bench.targets import Target, by_launcher
from hocket.errors import InvalidArgument
from hocket.measure import Coordinator, Key, Series, SeriesMeasurement, StopRule, measure_series
from hocket.measure.machine import usable_cpus
from hocket.measure.rounds import OnRound

STARTUP = "startup"
_Part = tuple[SeriesMeasurement, list[tuple[str, str]]]  # and what was left out, and why


@dataclass(frozen=True)
class Run:
    """What a run of benchmarks gave.

    Args:
        results: of all points, in their order.
        core_factor: the median over rounds: how many full cores the ranks had together.
        foreign_busy: share of all CPUs' time that others' work took, 0 to 1.
        warnings: what a reader has to know.
    """

    results: tuple[Result, ...]
    core_factor: float
    foreign_busy: float
    warnings: tuple[str, ...]


def run_points(
    points: Sequence[Point],
    targets: Sequence[Target],
    num_ranks: int,
    rule: StopRule,
    *,
    synchronised: bool = True,
    validates: bool = True,
    num_warm_up: int = 0,
    on_round: OnRound | None = None,
    on_results: Callable[[Sequence[Result]], object] | None = None,
) -> Run:
    """Measure points.

    Args:
        points: what; their libraries are among `targets`.
        targets: libraries.
        num_ranks: of every job.
        rule: when there are enough samples.
        synchronised: time calls one by one where that makes sense, each begun by all ranks at the same instant;
            otherwise loops of calls one behind the other, as OMB-Py does.
        validates: whether results are looked at again in the course of the run, at random moments; before it they are
            in any case.
        num_warm_up: how often each is done before anything is timed, beside a twentieth of each sample.
        on_round: called after each round, as of `measure_series`.
        on_results: called after each round with what was seen so far.

    Raises:
        InvalidArgument: a point cannot be measured so.
        LaunchError: a job failed; shows what it wrote.
        CommTimeout: one did not answer in time.
    """
    check_points(points, num_ranks)
    started = [each for each in points if each.benchmark == STARTUP]
    others = [each for each in points if each.benchmark != STARTUP]
    parts: list[_Part] = []
    if started:
        by_name = {each.name: each for each in targets}
        keys = {each.key: by_name[each.target] for each in started}
        parts.append((measure_startup(keys, num_ranks, rule, on_round), []))
    if others:
        parts.append(
            _measure_ranks(others, targets, num_ranks, rule, synchronised, validates, num_warm_up, on_round, on_results)
        )
    series = {key: each for measured, _ in parts for key, each in measured.series.items()}
    factors = [factor for measured, _ in parts for factor in measured.core_factors]
    foreign_busy = max(measured.foreign_busy for measured, _ in parts)
    results = tuple(Result.of(each, num_ranks, series) for each in points if each.key in series)
    warnings = [f"left out {name}: {reason}" for _, left_out in parts for name, reason in left_out]
    warnings += _warnings(results, num_ranks, foreign_busy)
    return Run(results, median(factors), foreign_busy, tuple(warnings))


def _measure_ranks(
    points: Sequence[Point],
    targets: Sequence[Target],
    num_ranks: int,
    rule: StopRule,
    synchronised: bool,
    validates: bool,
    num_warm_up: int,
    on_round: OnRound | None,
    on_results: Callable[[Sequence[Result]], object] | None,
) -> _Part:
    argv = [sys.executable, "-m", "hocket.bench.rank"]
    jobs = [
        LAUNCHERS[name]([*argv, specification(points, own, num_warm_up)], num_ranks, name)
        for name, own in by_launcher(targets).items()
    ]
    chosen = random.Random(rule.seed)
    with Coordinator(jobs) as coordinator:
        answers = [coordinator.ask(job.name, {"do": "left_out"})[0]["left_out"] for job in jobs]
        left_out = [(name, reason) for answer in answers for name, reason in answer]
        if not coordinator.contenders:
            raise InvalidArgument("; ".join(dict.fromkeys(reason for _, reason in left_out)))

        def show(series: Mapping[Key, Series]) -> None:
            if on_results is not None:
                on_results([Result.of(each, num_ranks, series) for each in points if each.key in series])

        def after_round(done: int, total: int, state: str) -> None:
            if validates:
                key = chosen.choice(coordinator.contenders)
                key = key._replace(name=key.name.partition(" [")[0])  # of a part, the whole
                request = {"do": "check", "case": key.case, "name": key.name, "turn": chosen.randrange(1, 1000)}
                coordinator.ask(coordinator.job_of(key), request)
            if on_round is not None:
                on_round(done, total, state)

        windowed = _windowed(points) if synchronised else ()
        return measure_series(coordinator, rule, windowed, on_round=after_round, on_series=show), left_out


def check_points(points: Sequence[Point], num_ranks: int) -> None:
    """Check what can be checked before anything is started.

    Raises:
        InvalidArgument: names what is wrong.
    """
    if not points:
        raise InvalidArgument("there is nothing to measure")
    for each in points:
        benchmark = find_benchmark(each.benchmark)
        if num_ranks < benchmark.least_ranks:
            raise InvalidArgument(f"{each.benchmark} needs {benchmark.least_ranks} ranks or more, not {num_ranks}")
        if benchmark.needs_pairs and num_ranks % 2:
            raise InvalidArgument(
                f"{each.benchmark} is between pairs: it needs an even number of ranks, not {num_ranks}"
            )


def _windowed(points: Sequence[Point]) -> set[Key]:
    return {each.key for each in points if find_benchmark(each.benchmark).is_windowed}


def _warnings(results: Sequence[Result], num_ranks: int, foreign_busy: float) -> list[str]:
    found = []
    cpus = usable_cpus()
    if num_ranks > cpus:
        found.append(f"{num_ranks} ranks share {cpus} CPUs: times are those of ranks that wait for each other's turn")
    if foreign_busy > 0.1:
        found.append(f"others' work took {foreign_busy:.0%} of the CPUs' time meanwhile")
    late = sum(each.num_late for each in results)
    calls = sum(len(each.calls) for each in results)
    if late > 0.05 * (late + calls):
        found.append(f"{late} of {late + calls} calls were begun too late by a rank, and dropped")
    return found
