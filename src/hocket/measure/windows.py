"""Windows on a common clock: calls begin at the same instant on all ranks and are timed one by one.

A loop of calls measures their throughput, not the time of one call: the root of a broadcast is done long before the
last rank has the data. With windows, the k-th call begins on all ranks at ``start_s + k * period_s``, and its time ends
when the last rank is done. If a rank is not ready in time, the window is dropped on all ranks.

Reference: Worsch, Reussner, Augustin, On Benchmarking Collective MPI Operations (2002); Hunold, Carpen-Amarie,
Reproducible MPI Benchmarking is Still Not as Easy as You Think (IEEE TPDS 27, 2016).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

from hocket import _native
from hocket.errors import InvalidState
from hocket.measure.contender import Contender, num_warm_up

_LEAD_S = 2e-3  # time to send the beginning of the first window to the ranks
_SPIN_S = 50e-6  # a rank spins for so long before a window begins; before that it yields its core
LATE = math.nan


def first_window_s(now_s: float, period_s: float, count: int) -> float:
    """Return when the first of `count` windows can begin: after the ranks know it and have warmed up."""
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
        contender: the contender to time.
        start_s: beginning of the first window, by `clock`.
        period_s: seconds from the beginning of a window to that of the next one.
        barrier: barrier of all ranks.
        clock: returns seconds, the same on all ranks.

    Returns:
        For each call, the seconds from the beginning of its window to its end on this rank; `LATE` if it began too
        late.

    Raises:
        InvalidState: the contender has no `once`.
    """
    call = contender.once
    if call is None:
        raise InvalidState(f"{contender.name} ({contender.case}) has no `once`, which timing calls one by one needs")
    with _native.region(contender.region_name):
        barrier()
        contender.run(num_warm_up(count))
        return _time_calls(call, start_s, period_s, count, clock)


def _time_calls(
    call: Callable[[], object], start_s: float, period_s: float, count: int, clock: Callable[[], float]
) -> list[float]:
    seconds = [LATE] * count
    for number in range(count):
        begin_s = start_s + number * period_s
        left_s = begin_s - clock()
        if left_s <= 0:
            call()  # the other ranks make this call too
            continue
        while begin_s - clock() > _SPIN_S:
            os.sched_yield()  # after a sleep a rank may wake on another rank's CPU, and stay there for many calls
        while clock() < begin_s:
            pass
        call()
        seconds[number] = clock() - begin_s
    return seconds


def calls_in_time(by_rank: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the seconds, by rank, of each call that all ranks began in time."""
    return [each for each in zip(*by_rank, strict=True) if not any(map(math.isnan, each))]
