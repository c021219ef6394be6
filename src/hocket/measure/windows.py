"""Calls that begin at the same instant on all ranks and are timed one by one: windows of time on a common clock.

A loop of calls behind one another measures how fast they follow, not how long one takes: a broadcast's root is free
long before the last rank has anything. With windows the k-th call begins everywhere at ``start_s + k * period_s``, and
takes until the last rank is done. A rank that is not ready in time is late, and its window counts for nobody.

Reference: Worsch, Reussner, Augustin, On Benchmarking Collective MPI Operations (2002); Hunold, Carpen-Amarie,
Reproducible MPI Benchmarking is Still Not as Easy as You Think (IEEE TPDS 27, 2016).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

from hocket.errors import InvalidState
from hocket.measure.contender import Contender, num_warm_up

_LEAD_S = 2e-3  # until the ranks have heard when the first window begins
_SPIN_S = 50e-6  # before a window begins; until then a rank that waits leaves the core to others that need it
LATE = math.nan


def first_window_s(now_s: float, period_s: float, count: int) -> float:
    """Return when the first of `count` windows can begin: after the ranks have heard of it, and warmed up."""
    return now_s + _LEAD_S + num_warm_up(count) * period_s


def sample_windows(
    contender: Contender,
    start_s: float,
    period_s: float,
    count: int,
    barrier: Callable[[], object],
    clock: Callable[[], float],
) -> list[float]:
    """Make `count` calls on this rank, each at the beginning of its window.

    Args:
        contender: what is timed.
        start_s: when the first window begins, on `clock`.
        period_s: from the beginning of one to that of the next one.
        barrier: of all ranks.
        clock: seconds, the same on all ranks.

    Returns:
        Of each call, seconds from the beginning of its window to its end here; `LATE` where it began too late.

    Raises:
        InvalidState: it is not made for that.
    """
    call = contender.once
    if call is None:
        raise InvalidState(f"calls of {contender.name} ({contender.case}) are not timed one by one")
    barrier()
    contender.run(num_warm_up(count))
    seconds = [LATE] * count
    for number in range(count):
        begin_s = start_s + number * period_s
        left_s = begin_s - clock()
        if left_s <= 0:
            call()  # the other ranks make it too
            continue
        while begin_s - clock() > _SPIN_S:
            os.sched_yield()  # a rank that slept would wake on another one's CPU, and stay there for many calls
        while clock() < begin_s:
            pass
        call()
        seconds[number] = clock() - begin_s
    return seconds


def calls_in_time(by_rank: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the calls that all ranks began in time: of each, the seconds until it was done, by rank."""
    return [each for each in zip(*by_rank, strict=True) if not any(map(math.isnan, each))]
