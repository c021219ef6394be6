"""The overhead of `hocket bench` itself, and the reliability of its verdicts.

A message of 8 bytes through the suite must take at most 0.35 us longer than in a bare loop of mpi4py, in the same run.
Applications on two ranks must reach 0.9 of the core factor of their own kernel. Of 20 comparisons of equal libraries,
at most one may report a slower one. Every comparison with a library that takes 5 % longer must report it as slower.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
from claim import Options, PartResults, measure_jobs, run_claim
from libraries import job

from hocket import bench
from hocket.measure import Contender, Measurement, Row, StopRule, median_interval, pin, progress, serve
from hocket.measure.loops import there_and_back
from hocket.measure.statistics import range_of_median

CASE, NBYTES, BARE = "8 B there and back", 8, "bare mpi4py loop"
MOST_OVER_US = 0.35
LEAST_SHARE = 0.9
NUM_EQUAL, NUM_SLOWER = 20, 10
NUM_LAUNCHES = 9  # of the jobs of each comparison, as in hocket bench compare
MOST_ALARMS = 1
JOBS = {"openmpi": "mpi4py:openmpi", "mpich": "mpi4py:mpich", "hocket": "shm"}


def bare_contender(library: str) -> Contender:
    """Return the loop that a user would write without a benchmark suite."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    sent, received = np.zeros(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    peer = 1 - comm.rank
    run = there_and_back(comm.rank, partial(comm.Send, sent, peer), partial(comm.Recv, received, peer))
    return Contender(CASE, f"{BARE}, {library}", run)


def serve_rank(library: str, names: str) -> None:
    """Run one rank: round trips of 8 bytes, through `hocket bench` and in a bare loop of mpi4py."""
    targets = bench.parse_targets(names)
    points = [bench.Point("latency", each.name, NBYTES) for each in targets]
    with bench.opened(targets) as drivers:
        prepared, left_out = bench.prepare_all(points, drivers)
        assert not left_out, left_out
        contenders = [Contender(CASE, f"hocket bench, {point.target}", each.run) for point, each in prepared.items()]
        first = drivers[targets[0].name]
        if any(each.through == "mpi4py" for each in targets):
            contenders.append(bare_contender(library))
        pin(first.rank)
        serve(contenders, first.rank, first.barrier)


def latency(options: Options) -> PartResults:
    """Compare one-way times through the suite with those of bare loops of both MPIs."""
    jobs = [job(library, __file__, [targets], 2) for library, targets in JOBS.items()]
    measurement = measure_jobs(jobs, "8 bytes", options.settings)
    pairs = [(target, family) for family in ("openmpi", "mpich") for target in (JOBS[family], "shm")]
    least = options.settings.min_rounds
    rows = [overhead_row(measurement, f"hocket bench, {ours}", f"{BARE}, {mpi}", least) for ours, mpi in pairs]
    yield rows, measurement


def overhead_row(measurement: Measurement, ours: str, theirs: str, min_rounds: int) -> Row:
    """Return a row that judges the extra microseconds per message; its ratio is that of the times."""
    times = (measurement.times(CASE, name) for name in (ours, theirs))
    pairs = [(a / 2, b / 2) for a, b in zip(*times, strict=True)]
    extra_us = [1e6 * (a - b) for a, b in pairs]
    low, high = range_of_median(extra_us)
    label = f"{ours}: {median(extra_us):+.3f} us [{low:+.3f}, {high:+.3f}], at most {MOST_OVER_US:+}"
    a, b = (1e6 * median(each) for each in zip(*pairs, strict=True))
    holds = median(extra_us) <= MOST_OVER_US if len(extra_us) >= min_rounds else None
    return Row(label, theirs, a, b, "us", median(b / a for a, b in pairs), None, 1.0 if holds is None else None, holds)


def apps(options: Options) -> PartResults:
    rule = StopRule(precision=0.01, time_limit_s=options.settings.time_limit_s / 4, min_samples=15)
    for name in bench.problems():
        with progress(name, "times") as on_round:
            found = bench.measure_speedup(name, 2, None, rule, on_round=on_round)
        label = f"{name}: {found.speedup:.2f} times as fast on 2 ranks, core factor {found.core_factor:.2f}"
        holds = None if found.interval is None else found.share >= LEAST_SHARE
        times = 1e3 * found.together_s, 1e3 * found.alone_s
        yield ([Row(label, "its kernel, twice", *times, "ms", found.share, found.interval, LEAST_SHARE, holds)],)


def comparisons(options: Options) -> PartResults:
    """Count the verdicts "slower" for equal libraries, and for a library that takes 5 % longer."""
    rule = StopRule(precision=0.002, max_samples=400, time_limit_s=options.settings.time_limit_s / 40)
    for pair, total, is_slower in (("shm,shm!again", NUM_EQUAL, False), ("shm!slow=0%,shm!slow=5%", NUM_SLOWER, True)):
        alarms, ratios = 0, []
        with progress(f"comparisons of {pair}", "comparisons") as update:
            for number in range(total):
                found = compare_pair(pair, replace(rule, seed=rule.seed + number))
                alarms += found.is_slower
                ratios += [row.ratio for row in found.rows]
                update(number + 1, total, f"{alarms} slower")
        label = f"{pair}: the second slower in {alarms} of {total}"
        holds = alarms == total if is_slower else alarms <= MOST_ALARMS
        middle = median(ratios)
        yield ([Row(label, "shm", middle, 1.0, "times", middle, median_interval(ratios), None, holds)],)


def compare_pair(pair: str, rule: StopRule) -> bench.Comparison:
    targets = bench.parse_targets(pair)
    points = bench.choose_points(["all_reduce"], targets, sizes=[256 << 10, 1 << 20])
    results = bench.run_points(points, targets, 2, rule, num_launches=NUM_LAUNCHES).results
    first, second = ([each for each in results if each.point.target == target.name] for target in targets)
    return bench.compare(first, second, paired=True)


if __name__ == "__main__":
    run_claim(
        "hocket bench costs little, and its verdicts hold", {"latency": latency, "apps": apps, "compare": comparisons}
    )
