"""Measures jobs that are started several times, where what a process is like from its start on decides its times.

The addresses of code and data change the time of 16 bytes by some percent in all samples of a process, and threads of
some processes hand work to another one in 16 us, those of others in 80 us. Jobs that are started first are slower by
some percent, also if they are equal. So every start is followed by one in the other order, and both count as one round:
the mean of the medians of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from claim import measure_jobs, option

from hocket.measure import Job, Key, Measurement, Round, Settings
from hocket.measure.rounds import AGAIN

FIRST = "the first one"
STARTS = option("--starts", type=int, default=9, metavar="N", help="starts of all ranks in each order (default 9)")


def measure_starts(jobs: Sequence[Job], num_starts: int, words: str, settings: Settings) -> Measurement:
    """Start the jobs so often in each order, and return one measurement of all starts.

    Args:
        jobs: whose ranks have the same cases.
        num_starts: in each order.
        words: what is measured, for the progress.
        settings: of each start.
    """
    starts = []
    for number in range(2 * num_starts):
        ordered = [*jobs][:: -1 if number % 2 else 1]
        starts.append(measure_jobs(ordered, f"{words}start {number + 1} of {2 * num_starts}", settings))
    return join_starts(starts)


def join_starts(starts: Sequence[Measurement]) -> Measurement:
    """Return one measurement with a round for each two starts; its A/A rows are of the ranks that started first."""
    rounds = [median_round(each) for each in starts]
    pairs = tuple(mean_round(*each) for each in zip(rounds[::2], rounds[1::2], strict=True))
    iterations = {Key(case, FIRST): count for (case, _), count in starts[0].iterations.items()} | starts[0].iterations
    busy = fmean(each.foreign_busy for each in starts)
    return replace(starts[0], rounds=pairs, iterations=iterations, foreign_busy=busy)


def median_round(start: Measurement) -> Round:
    """Return the medians of a start, with the same names for its A/A test whichever checkout started first."""
    seconds = {key: median(each.seconds[key] for each in start.rounds) for key in start.rounds[0].seconds}
    for case, name in [key for key in seconds if key.name.endswith(AGAIN)]:
        seconds[Key(case, FIRST + AGAIN)] = seconds.pop(Key(case, name))
        seconds[Key(case, FIRST)] = seconds[Key(case, name.removesuffix(AGAIN))]
    return Round(seconds, start.core_factor)


def mean_round(one: Round, other: Round) -> Round:
    """Return the mean of two rounds."""
    seconds = {key: fmean((one.seconds[key], other.seconds[key])) for key in one.seconds}
    return Round(seconds, fmean((one.core_factor, other.core_factor)))
