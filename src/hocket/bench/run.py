"""Runs points: all of them interleaved, each over its library, with results that were looked at."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from hocket.bench.launched import measure_launched
from hocket.bench.launchers import LAUNCHERS
from hocket.bench.measuring import OnResults, PointsMeasurement, Request, join, measure_points
from hocket.bench.point import Point
from hocket.bench.rank import specification
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result
from hocket.bench.startup import measure_startup
from hocket.bench.targets import Target, by_job
from hocket.boot.admission import free_nbytes
from hocket.boot.environment import read_world
from hocket.comm.policy import format_nbytes
from hocket.errors import InvalidArgument
from hocket.measure import Coordinator, Key, StopRule
from hocket.measure.machine import usable_cpus
from hocket.measure.rounds import OnRound

STARTUP = "startup"
_LEAST_LAUNCH_S = 0.2  # minimum time for the samples of a launch


@dataclass(frozen=True)
class Run:
    """The results of a run of benchmarks.

    Args:
        results: results of all points, in their order.
        core_factor: number of full cores that the ranks had together; the median over rounds.
        foreign_busy: share of the CPU time, 0 to 1, that other programs took.
        warnings: warnings for the reader.
        began_s, ended_s: beginning and end in seconds since the epoch; 0 if a file does not have them.

    Examples:
        >>> from hocket.bench import Point, Result, Run
        >>> result = Result(Point("barrier", "shm", 0), 2, (2e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> run = Run((result,), core_factor=1.9, foreign_busy=0.0, warnings=())
        >>> [each.point.benchmark for each in run.results]
        ['barrier']
    """

    results: tuple[Result, ...]
    core_factor: float
    foreign_busy: float
    warnings: tuple[str, ...]
    began_s: float = 0.0
    ended_s: float = 0.0


def run_points(
    points: Sequence[Point],
    targets: Sequence[Target],
    num_ranks: int,
    rule: StopRule,
    *,
    synchronised: bool = True,
    validates: bool = True,
    num_warm_up: int = 0,
    num_launches: int = 1,
    on_round: OnRound | None = None,
    on_results: OnResults | None = None,
) -> Run:
    """Measure points between ranks that it starts; under a launcher, between the ranks of the launcher's job.

    Under a launcher all ranks call it, and get equal results.

    Args:
        points: points to measure; their libraries are among `targets`.
        targets: libraries.
        num_ranks: number of ranks of every job.
        rule: rule that ends the measurement.
        synchronised: time calls one by one where this makes sense, each begun by all ranks at the same instant;
            otherwise time loops of calls, as OMB-Py does.
        validates: check results again at random moments of the run; they are always checked before it.
        num_warm_up: iterations of each point before anything is timed, in addition to a twentieth of each sample.
        num_launches: number of launches of the jobs, one after the other; they share the rule's time. Times of two
            launches differ by some percent, because their memory lies at different places.
        on_round: progress callback, as in `measure_series`.
        on_results: called after each round with the results so far.

    Raises:
        InvalidArgument: a point cannot be measured with these arguments.
        LaunchError: a job failed; shows its output.
        CommTimeout: a job did not answer in time.

    Examples:
        >>> from hocket.bench import choose_points, parse_targets, run_points
        >>> targets = parse_targets("shm")
        >>> points = choose_points(["latency"], targets, sizes=[8])
        >>> run_points(points, targets, num_ranks=1, rule=hk.measure.StopRule())
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: latency needs 2 ranks or more, not 1
    """
    began_s = time.time()
    check_points(points, num_ranks)
    if num_launches < 1:
        raise InvalidArgument(f"the number of launches must be 1 or more, not {num_launches}")
    request = Request(points, targets, num_ranks, rule, synchronised, validates, num_warm_up, num_launches)
    starts = [each for each in points if each.benchmark == STARTUP]
    others = replace(request, points=[each for each in points if each.benchmark != STARTUP])
    measured: list[PointsMeasurement] = []
    is_launched = read_world().size > 1
    if starts and is_launched:
        raise InvalidArgument(f"{STARTUP} starts whole jobs: run it without a launcher")
    if starts:
        by_name = {each.name: each for each in targets}
        keys = {each.key: by_name[each.target] for each in starts}
        measured.append(PointsMeasurement(measure_startup(keys, num_ranks, rule, on_round)))
    if others.points:
        if is_launched and num_launches > 1:
            raise InvalidArgument(f"under a launcher the number of launches must be 1, not {num_launches}")
        measured.append(
            measure_launched(others, on_round, on_results)
            if is_launched
            else _measure_launches(others, on_round, on_results)
        )
    series = {key: each for part in measured for key, each in part.series.series.items()}
    factors = [factor for part in measured for factor in part.series.core_factors]
    foreign_busy = max(part.series.foreign_busy for part in measured)
    launches = {key: each for part in measured for key, each in part.launches.items()}
    results = tuple(Result.of(each, num_ranks, series, launches.get(each.key)) for each in points if each.key in series)
    warnings = [f"left out {name}: {reason}" for part in measured for name, reason in part.left_out]
    warnings += [each for part in measured for each in part.warnings]
    warnings += _warnings(results, num_ranks, foreign_busy)
    return Run(results, median(factors), foreign_busy, tuple(warnings), began_s, time.time())


def _measure_launches(request: Request, on_round: OnRound | None, on_results: OnResults | None) -> PointsMeasurement:
    """Launch the jobs `num_launches` times, each time with another order of measurements.

    The start-up time of a launch is subtracted from the time of the next one.
    """
    found = []
    set_up_s = 0.0
    began_s = time.monotonic()
    for number in range(request.num_launches):
        launch_began_s = time.monotonic()
        left_s = request.rule.time_limit_s - (launch_began_s - began_s)
        share_s = left_s / (request.num_launches - number)
        rule = replace(
            request.rule, seed=request.rule.seed + number, time_limit_s=max(_LEAST_LAUNCH_S, share_s - set_up_s)
        )
        callback = None if on_round is None else _of_launch(on_round, number, request.num_launches, left_s - share_s)
        found.append(_measure_jobs(replace(request, rule=rule), callback, on_results))
        set_up_s = max(0.0, time.monotonic() - launch_began_s - rule.time_limit_s)
    return join(found)


def _of_launch(on_round: OnRound, number: int, num_launches: int, to_come_s: float) -> OnRound:
    """Return the progress callback of one launch; it adds the full time of the launches to come."""
    if num_launches == 1:
        return on_round

    def on_round_of_launch(done: int, total: int, state: str, left_s: float | None = None, /) -> None:
        launch = f"launch {number + 1} of {num_launches}"
        on_round(done, total, f"{launch}, {state}", None if left_s is None else left_s + to_come_s)

    return on_round_of_launch


def _measure_jobs(request: Request, on_round: OnRound | None, on_results: OnResults | None) -> PointsMeasurement:
    """Start one job per launcher, and measure the points of all jobs, interleaved."""
    argv = [sys.executable, "-m", "hocket.bench.rank"]
    jobs = [
        LAUNCHERS[own[0].launcher](
            [*argv, specification(request.points, own, request.num_warm_up)], request.num_ranks, own[0].name
        )
        for own in by_job(request.targets)
    ]
    with Coordinator(jobs) as coordinator:
        answers = [coordinator.ask(job.name, {"do": "left_out"})[0]["left_out"] for job in jobs]
        left_out = [(name, reason) for answer in answers for name, reason in answer]
        if not coordinator.contenders:
            raise InvalidArgument("; ".join(dict.fromkeys(reason for _, reason in left_out)))

        def check(key: Key, turn: int) -> None:
            message = {"do": "check", "case": key.case, "name": key.name, "turn": turn}
            coordinator.ask(coordinator.job_of[key], message)

        return PointsMeasurement(measure_points(coordinator, request, check, on_round, on_results), left_out=left_out)


def check_points(points: Sequence[Point], num_ranks: int) -> None:
    """Check points and the number of ranks, before anything is started.

    Raises:
        InvalidArgument: a point cannot be measured; names the benchmark or the size.
    """
    if not points:
        raise InvalidArgument("at least one point must be given, not 0")
    for each in points:
        benchmark = find_benchmark(each.benchmark)
        if num_ranks < benchmark.least_ranks:
            raise InvalidArgument(f"{each.benchmark} needs {benchmark.least_ranks} ranks or more, not {num_ranks}")
        if benchmark.needs_pairs and num_ranks % 2:
            raise InvalidArgument(
                f"{each.benchmark} runs between pairs: it needs an even number of ranks, not {num_ranks}"
            )
    largest, free = max(each.nbytes for each in points), free_nbytes()
    is_launched = read_world().size > 1  # perhaps on several hosts, where ranks would disagree
    if not is_launched and free is not None and largest * num_ranks > free:
        raise InvalidArgument(
            f"{num_ranks} ranks with a message of {format_nbytes(largest)} each need more than the free memory, "
            f"{format_nbytes(free)}"
        )


def oversubscription_warning(num_ranks: int, num_cpus: int) -> str:
    """Return the warning about more ranks than CPUs on this machine."""
    return f"{num_ranks} ranks share {num_cpus} CPUs: times include waiting for a CPU"


def _warnings(results: Sequence[Result], num_ranks: int, foreign_busy: float) -> list[str]:
    found = []
    world = read_world()
    if world.size > 1:  # a launcher may have bound each rank to one CPU
        num_here, cpus = world.local_size, os.cpu_count() or 1
    else:
        num_here, cpus = num_ranks, usable_cpus()
    if num_here > cpus:
        found.append(oversubscription_warning(num_here, cpus))
    if foreign_busy > 0.1:
        found.append(f"other programs took {foreign_busy:.0%} of the CPU time meanwhile")
    late = sum(each.num_late for each in results)
    calls = sum(len(each.calls) for each in results)
    if late > 0.05 * (late + calls):
        found.append(f"{late} of {late + calls} calls were dropped because a rank began them too late")
    return found
