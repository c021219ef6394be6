"""Times some of a table's choices again, beside what else could have been chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hocket.comm import Communicator
from hocket.comm.policy import Group
from hocket.measure import median_interval
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Stage, Sweep
from hocket.tune.table import Table

MOST_RATIO = 1.2
_WORTH_A_TRY = 3.0  # times the time of the chosen way in the table: what is slower is not tried again
_MOST_ALTERNATIVES = 5


@dataclass(frozen=True)
class Point:
    """One choice, timed again.

    Args:
        op, dtypes, nbytes: what for.
        chosen: by the table, as in `Range.ranking`.
        best: the fastest now.
        ratio: median over the rounds of the time of the chosen way over that of the best one.
        low, high: 95 % interval of the ratio.
        holds: whether the choice is not clearly slower than `MOST_RATIO` times the best.
    """

    op: str
    dtypes: str
    nbytes: int
    chosen: str
    best: str
    ratio: float
    low: float
    high: float
    holds: bool


def recheck(comm: Communicator, table: Table, num_points: int, seed: int, sweep: Sweep) -> list[Point]:
    """Time random choices of a table; called by all ranks, with the same arguments.

    Sizes are drawn between the measured ones. A choice is compared with those ways that the table has times for near
    that size, all of them in every round.

    Args:
        comm: of as many ranks as the table has times for.
        table: whose choices are checked.
        num_points: how many.
        seed: of the draw.
        sweep: how long and how often.
    """
    points = draw_points(table, comm.size, num_points, seed)
    group = Group(comm.size, list(comm.backends), comm.num_hosts)
    stage = Stage(comm, sweep)
    try:
        contenders = {point: _alternatives(table, group, *point) for point in points}
        pairs = [(point, carrier) for point, carriers in contenders.items() for carrier in carriers]
        times = stage.measure_carriers(pairs, sweep.rounds)
    finally:
        stage.close()
    found = []
    for point, carriers in contenders.items():
        able = {carrier: times[point, carrier] for carrier in carriers if (point, carrier) in times}
        found.append(_judge(point, carriers[0], able))
    return found


def draw_points(table: Table, num_ranks: int, num_points: int, seed: int) -> list[tuple[str, str, int]]:
    """Draw operations, classes of types and sizes that the table chooses for."""
    drawn = random.Random(seed)
    cells = [
        (op, dtypes, list(sizes))
        for (op, dtypes, ranks, busy), sizes in sorted(table.cells.items())
        if ranks == num_ranks and not busy and op != "send"  # of which there is one choice for all sizes
    ]
    points = []
    for _ in range(num_points if cells else 0):
        op, dtypes, sizes = drawn.choice(cells)
        least, most = max(4, min(sizes)), max(sizes)
        nbytes = round(math.exp(drawn.uniform(math.log(least), math.log(max(least, most))))) // 4 * 4
        points.append((op, dtypes, 0 if op == "barrier" else nbytes))
    return list(dict.fromkeys(points))


def _alternatives(table: Table, group: Group, op: str, dtypes: str, nbytes: int) -> list[str]:
    """The chosen way first, then those that may be as fast."""
    _, candidates = TablePolicy(table).explain(group, op, dtypes, nbytes)
    first = candidates[0]
    others = [
        each.carrier
        for each in candidates[1:]
        if each.seconds is not None and each.seconds <= _WORTH_A_TRY * (first.seconds or math.inf)
    ]
    return [first.carrier, *others[:_MOST_ALTERNATIVES]]


def _judge(point: tuple[str, str, int], chosen: str, times: Mapping[str, Sequence[float]]) -> Point:
    best = min(times, key=lambda carrier: median(times[carrier]))
    ratios = [mine / other for mine, other in zip(times[chosen], times[best], strict=True)]
    low, high = median_interval(ratios)
    return Point(*point, chosen, best, median(ratios), low, high, holds=low <= MOST_RATIO)
