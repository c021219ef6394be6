"""How much faster an application is on several ranks: measured here, and modelled for many."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hocket.bench.apps._rank import ALONE, SHARE, SHARES, TOGETHER
from hocket.bench.apps.registry import find_problem
from hocket.bench.launchers import plain_job
from hocket.errors import InvalidArgument
from hocket.measure import Coordinator, Key, StopRule, measure_series
from hocket.measure.statistics import interval_of, quotients
from hocket.session import simulate

if TYPE_CHECKING:
    from hocket.measure.rounds import OnRound
    from hocket.sim import Hosts, Uniform


@dataclass(frozen=True)
class Modelled:
    """What the application would take between many ranks. Simulated, not measured.

    Args:
        num_ranks: how many.
        seconds: of the solution.
        speedup: against one process, measured here.
    """

    num_ranks: int
    seconds: float
    speedup: float


@dataclass(frozen=True)
class Speedup:
    """An application, by one process and by several.

    Args:
        name: of it.
        scale: of the problem.
        num_ranks: that solved it together.
        alone_s, together_s: medians of the time of one process, and of all ranks.
        speedup: how many times as fast all ranks are: the median over rounds.
        core_factor: how many times as much all ranks do at once as one alone: the same kernel, run by processes that
            know nothing of each other. No speed-up can be larger, but for caches.
        share: the speed-up as a part of the core factor: the median over rounds.
        interval: of that.
        modelled: for more ranks.

    Examples:
        >>> from hocket.bench import Speedup
        >>> result = Speedup("kmeans", 1000, 2, 1.0, 0.55, 1.82, 1.9, 0.96, (0.94, 0.97), modelled=())
        >>> f"{result.name}: {result.speedup} times as fast on {result.num_ranks} ranks"
        'kmeans: 1.82 times as fast on 2 ranks'
    """

    name: str
    scale: int
    num_ranks: int
    alone_s: float
    together_s: float
    speedup: float
    core_factor: float
    share: float
    interval: tuple[float, float] | None
    modelled: tuple[Modelled, ...]


def measure_speedup(
    name: str,
    num_ranks: int,
    scale: int | None,
    rule: StopRule,
    *,
    modelled: Sequence[int] = (),
    fabric: Uniform | Hosts | None = None,
    on_round: OnRound | None = None,
) -> Speedup:
    """Solve a problem by one process and by several, in the same rounds, and say what many would take.

    Args:
        name: of the application.
        num_ranks: 2 or more.
        scale: of the problem; None: as the application has it.
        rule: when there is enough.
        modelled: numbers of ranks to simulate: the same program, whose ranks spend the time that their share of the
            work takes here.
        fabric: that connects those.
        on_round: as of `measure_series`.

    Raises:
        InvalidArgument: there is no such application, or it cannot be measured so.
        LaunchError: a rank failed, for example because a solution was wrong.

    Examples:
        >>> from hocket.bench import measure_speedup
        >>> measure_speedup("kmeans", 1, None, hk.measure.StopRule())
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: a speed-up is of 2 ranks or more, not 1
    """
    kind = find_problem(name)
    if num_ranks < 2:
        raise InvalidArgument(f"a speed-up is of 2 ranks or more, not {num_ranks}")
    if modelled and fabric is None:
        raise InvalidArgument("what connects modelled ranks is not said")
    problem = kind(scale)
    argv = [sys.executable, "-m", "hocket.bench.apps._rank", name, str(problem.scale)]
    with Coordinator([plain_job(argv, num_ranks)]) as coordinator:
        series = measure_series(coordinator, rule, on_round=on_round).series
    alone, together, share, shares = (series[Key(name, each)].samples for each in (ALONE, TOGETHER, SHARE, SHARES))
    speedups = quotients(together, alone)
    factors = [num_ranks * each for each in quotients(shares, share)]
    parts = quotients(factors, speedups)
    problem.seconds_per_item = median(share) / problem.num_items(0, num_ranks)
    found = []
    for number in modelled:
        seconds = simulate(problem.solve, number, fabric=fabric, moves_data=False).seconds  # type: ignore[arg-type]
        found.append(Modelled(number, seconds, median(alone) / seconds))
    return Speedup(
        name,
        problem.scale,
        num_ranks,
        median(alone),
        median(together),
        median(speedups),
        median(factors),
        median(parts),
        interval_of(parts),
        tuple(found),
    )
