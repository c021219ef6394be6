"""What `hocket bench` itself costs, and whether its verdicts can be trusted.

A message of 8 bytes through the suite is to take at most 0.35 us longer than in a bare loop of mpi4py, in the same run.
Applications on two ranks are to reach 0.9 of the core factor of their own kernel. Of 20 comparisons of equals at most
one may raise an alarm, and everything that takes 5 % longer has to be found slower.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from libraries import job
from suite_rank import BARE, CASE

from hocket.bench import Comparison, choose_points, compare, measure_speedup, parse_targets, problems, run_points
from hocket.measure import (
    Coordinator,
    Key,
    Measurement,
    Row,
    Settings,
    StopRule,
    finish,
    measure,
    median_interval,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
from hocket.measure.statistics import MIN_VALUES

RANK_SCRIPT = Path(__file__).with_name("suite_rank.py")
MOST_OVER_US = 0.35
LEAST_SHARE = 0.9
NUM_EQUAL, NUM_SLOWER = 20, 10
NUM_LAUNCHES = 9  # of the jobs of each, as hocket bench compare has them
MOST_ALARMS = 1
JOBS = {"openmpi": "mpi4py:openmpi", "mpich": "mpi4py:mpich", "hocket": "shm"}


def latency_rows(settings: Settings) -> tuple[list[Row], Measurement]:
    """One-way times through the suite, over those of a bare loop of the same MPI."""
    jobs = [job(library, RANK_SCRIPT, [targets], 2) for library, targets in JOBS.items()]
    with Coordinator(jobs) as coordinator, progress("8 bytes") as on_round:
        measured = measure(coordinator, settings, on_round=on_round)
    rows = []
    for family in ("openmpi", "mpich"):
        for target in (JOBS[family], "shm"):
            rows.append(over(measured, f"hocket bench, {target}", f"{BARE}, {family}", settings))
    return [*rows, *null_rows(measured)], measured


def over(measured: Measurement, ours: str, theirs: str, settings: Settings) -> Row:
    """How many microseconds a message takes longer; the ratio of the row is that of the times."""
    pairs = [(each.seconds[Key(CASE, ours)] / 2, each.seconds[Key(CASE, theirs)] / 2) for each in measured.rounds]
    longer = [1e6 * (a - b) for a, b in pairs]
    low, high = median_interval(longer) if len(longer) >= MIN_VALUES else (min(longer), max(longer))
    label = f"{ours}: {median(longer):+.3f} us [{low:+.3f}, {high:+.3f}], at most {MOST_OVER_US:+}"
    a, b = (1e6 * median(each) for each in zip(*pairs, strict=True))
    holds = median(longer) <= MOST_OVER_US if len(longer) >= settings.min_rounds else None
    return Row(label, theirs, a, b, "us", median(b / a for a, b in pairs), None, 1.0 if holds is None else None, holds)


def application_rows(rule: StopRule) -> list[Row]:
    rows = []
    for name in problems():
        with progress(name, "times") as on_round:
            found = measure_speedup(name, 2, None, rule, on_round=on_round)
        label = f"{name}: {found.speedup:.2f} times as fast on 2 ranks, core factor {found.core_factor:.2f}"
        holds = None if found.interval is None else found.share >= LEAST_SHARE
        rows.append(
            Row(label, "its kernel, twice", 1e3 * found.together_s, 1e3 * found.alone_s, "ms", found.share,
                found.interval, LEAST_SHARE, holds)
        )  # fmt: skip
    return rows


def comparison_rows(rule: StopRule) -> list[Row]:
    """Verdicts on equals, and on what takes 5 % longer."""
    rows = []
    for pair, total, wanted in (("shm,shm!again", NUM_EQUAL, False), ("shm!slow=0%,shm!slow=5%", NUM_SLOWER, True)):
        alarms, ratios = 0, []
        with progress(f"comparisons of {pair}", "comparisons") as update:
            for number in range(total):
                found = compared(pair, replace(rule, seed=rule.seed + number))
                alarms += found.is_slower
                ratios += [row.ratio for row in found.rows]
                update(number + 1, total, f"{alarms} slower")
        label = f"{pair}: the second slower in {alarms} of {total}"
        holds = alarms == total if wanted else alarms <= MOST_ALARMS
        rows.append(
            Row(label, "shm", median(ratios), 1.0, "times", median(ratios), median_interval(ratios), None, holds)
        )
    return rows


def compared(pair: str, rule: StopRule) -> Comparison:
    targets = parse_targets(pair)
    points = choose_points(["all_reduce"], targets, sizes=[256 << 10, 1 << 20])
    results = run_points(points, targets, 2, rule, num_launches=NUM_LAUNCHES).results
    first, second = ([each for each in results if each.point.target == target.name] for target in targets)
    return compare(first, second, paired=True)


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--part", action="append", choices=("latency", "apps", "compare"), help="may be repeated")
    options = parser.parse_args()
    parts = options.part or ["latency", "apps", "compare"]
    settings = settings_of(options)
    rows: list[Row] = []
    measurements = []
    if "latency" in parts:
        found, measured = latency_rows(settings)
        rows += found
        measurements.append(measured)
    if "apps" in parts:
        rows += application_rows(StopRule(precision=0.01, time_limit_s=settings.time_limit_s / 4, min_samples=15))
    if "compare" in parts:
        rows += comparison_rows(StopRule(precision=0.002, max_samples=400, time_limit_s=settings.time_limit_s / 40))
    return finish(report("hocket bench costs little, and its verdicts hold", rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
