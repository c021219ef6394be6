"""Two ranks beside other programs that compute: hocket against gloo and Open MPI.

The script starts the busy processes itself, each in a session of its own, as those of other users are: the kernel
divides processors between sessions (autogroup of sched(7)). The two ranks of a job share a session, as those of
``hocket run`` and mpirun do, and are bound to no processor. Each case has two rows: the median of its times is a
typical step, the mean is what a whole run takes.

A row holds where the ratio is at least 1 and its interval's lower end at least 0.85; it falls short where the ratio is
below 1 and the upper end below 1.05; otherwise nothing can be said. The interval of a ratio of means is a bootstrap's
(Efron, Tibshirani: An Introduction to the Bootstrap, 1993, section 13.3), of whole rounds.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from busy_rank import DDP, LARGE, SMALL, STEP
from libraries import job

from hocket.bench.launchers import ENVIRONMENT
from hocket.measure import (
    Coordinator,
    Job,
    Key,
    Measurement,
    Process,
    Ratio,
    Row,
    finish,
    mean_ratio,
    measure,
    progress,
    ratio,
    report,
    run_script,
    script_parser,
    settings_of,
)

RANK_SCRIPT = Path(__file__).with_name("busy_rank.py")
NUM_BUSY = (0, 2, 4, 8, 16)
LIBRARIES = dict.fromkeys((SMALL, STEP, LARGE), ("gloo", "Open MPI")) | {DDP: ("gloo",)}
MIN_ROUNDS, QUICK_ROUNDS = 60, 15
MAX_FOREIGN_BUSY = 0.25
TIME_LIMIT_S = 1800.0  # for each number of busy processes: a round beside 16 takes up to half a minute
SAMPLE_S = 0.05  # long enough to spend the credit that the scheduler gives to a rank that waited for its sample
TARGET, LEAST_LOW, MOST_HIGH = 1.0, 0.85, 1.05

Centre = Callable[[Sequence[float]], float]
BY: dict[str, tuple[Centre, Callable[[Sequence[float], Sequence[float]], Ratio]]] = {
    "median": (median, ratio),
    "mean": (fmean, mean_ratio),
}


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run so many processes that compute and never wait."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def verdict(seen: Ratio, measured: Measurement) -> bool | None:
    """Whether a row holds; None where nothing can be said."""
    if len(measured.rounds) < MIN_ROUNDS or measured.foreign_busy > MAX_FOREIGN_BUSY:
        return None
    if seen.median >= TARGET and seen.low >= LEAST_LOW:
        return True
    return False if seen.median < TARGET and seen.high < MOST_HIGH else None


def rows_of(measured: Measurement, num_busy: int) -> Iterator[Row]:
    """Two rows a case, each against the rival that is the fastest by what the row is about."""

    def times(case: str, name: str) -> list[float]:
        return [each.seconds[Key(case, name)] for each in measured.rounds]

    for case, rivals in LIBRARIES.items():
        ours = times(case, "hocket")
        for by, (centre, compared) in BY.items():
            rival = min(rivals, key=lambda name: centre(times(case, name)))
            theirs = times(case, rival)
            seen = compared(ours, theirs)
            yield Row(
                case=f"{num_busy} busy, {case}, {by}",
                rival=rival,
                ours=centre(ours) * 1e6,
                theirs=centre(theirs) * 1e6,
                unit="us",
                ratio=seen.median,
                interval=(seen.low, seen.high),
                target=TARGET,
                holds=verdict(seen, measured),
            )


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument(
        "--busy", type=int, nargs="+", metavar="N", default=NUM_BUSY, help="processes (default: 0 2 4 8 16)"
    )
    options = parser.parse_args()
    settings = settings_of(options)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else MIN_ROUNDS)
    settings = replace(settings, min_rounds=rounds, min_sample_s=SAMPLE_S, core_rounds=0, again=False)
    if options.time_limit is None and not options.quick:
        settings = replace(settings, time_limit_s=TIME_LIMIT_S)
    rows: list[Row] = []
    measurements = []
    command = (sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(RANK_SCRIPT), "torch")
    jobs = [Job("torch", 2, (Process(command, ENVIRONMENT),)), job("openmpi", RANK_SCRIPT, [], 2)]
    with Coordinator(jobs, run_timeout_s=600.0) as coordinator:
        for count in options.busy:
            with busy_processes(count), progress(f"{count} busy processes") as on_round:
                measured = measure(coordinator, settings, on_round=on_round)
            measurements.append(measured)
            rows += rows_of(measured, count)
    claim = (
        "beside other programs two ranks are no slower over hocket than over gloo or Open MPI, by median and by mean"
    )
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
