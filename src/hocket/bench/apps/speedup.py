"""The speed-up of an application on several ranks: measured here, and modelled for many ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hocket.bench.apps._rank import ALONE, SHARE, SHARES, TOGETHER
from hocket.bench.apps.registry import find_problem
from hocket.bench.launchers import plain_job
from hocket.errors import InvalidArgument
from hocket.measure import Coordinator, Key, StopRule, measure_series
from hocket.measure.rounds import OnRound
from hocket.measure.statistics import interval_of, quotients
from hocket.session import simulate
from hocket.sim import Hosts, Uniform


@dataclass(frozen=True)
class Modelled:
    """The simulated time of an application on many ranks.

    Args:
        num_ranks: number of ranks.
        seconds: simulated seconds of the solution.
        speedup: speed-up relative to one process, which was measured here.
    """

    num_ranks: int
    seconds: float
    speedup: float


@dataclass(frozen=True)
class Speedup:
    """The speed-up of an application on several ranks.

    Args:
        name: name of the application.
        scale: size of the problem.
        num_ranks: number of ranks that solved it together.
        alone_s, together_s: median seconds of one process, and of all ranks.
        speedup: how many times as fast all ranks are as one process: the median over rounds.
        core_factor: speed-up of independent processes that run the same kernel at once. Except for effects of caches,
            it is the upper limit of the speed-up.
        share: speed-up divided by the core factor: the median over rounds.
        interval: interval of the share.
        modelled: simulated times for more ranks.

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
    """Measure an application on one process and on several ranks, in the same rounds, and model it for many ranks.

    Args:
        name: name of the application.
        num_ranks: number of ranks, 2 or more.
        scale: size of the problem; None: the default of the application.
        rule: rule that ends the measurement.
        modelled: numbers of ranks to simulate. The same program runs; each rank computes for as long as its share of
            the work takes here.
        fabric: network between the simulated ranks.
        on_round: progress callback, as in `measure_series`.

    Raises:
        InvalidArgument: the application is unknown, or an argument is out of range.
        LaunchError: a rank failed, for example because a solution was wrong.

    Examples:
        >>> from hocket.bench import measure_speedup
        >>> measure_speedup("kmeans", 1, None, hk.measure.StopRule())
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: a speed-up needs 2 ranks or more, not 1
    """
    kind = find_problem(name)
    if num_ranks < 2:
        raise InvalidArgument(f"a speed-up needs 2 ranks or more, not {num_ranks}")
    if modelled and fabric is None:
        raise InvalidArgument(f"simulating {', '.join(map(str, modelled))} ranks needs a fabric, not None")
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
