"""Time some of a table's choices again, beside the alternatives."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hocket.comm import Communicator
from hocket.comm.policy import Group
from hocket.measure import ratio
from hocket.tune.contest import Key as CellKey
from hocket.tune.contest import candidates
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, SweepStage
from hocket.tune.table import Table

MOST_RATIO = 1.2
_MOST_SCHEDULES = 3


@dataclass(frozen=True)
class RecheckedPoint:
    """One choice of a table that was timed again.

    Args:
        op, dtypes, nbytes: operation, class of types and size.
        chosen: the table's choice, as in `Range.ranking`.
        best: the fastest alternative in the new times.
        num_others: number of alternatives that were timed.
        ratio: time of the choice relative to the best alternative, the median over rounds; below 1 it is faster.
        low, high: 95 % interval of the ratio.
        holds: whether the choice is not clearly slower than `MOST_RATIO` times the best.
    """

    op: str
    dtypes: str
    nbytes: int
    chosen: str
    best: str
    num_others: int
    ratio: float
    low: float
    high: float
    holds: bool


def recheck(comm: Communicator, table: Table, num_points: int, seed: int, sweep: Sweep) -> list[RecheckedPoint]:
    """Time random choices of a table; all ranks call it with the same arguments.

    Sizes are drawn between the measured ones. A choice is compared with every library's own algorithm and with the
    schedules that are fast by the table or by the model, all of them in every round.

    Args:
        comm: communicator with a number of ranks that the table has times for.
        table: table whose choices are checked.
        num_points: number of choices to draw.
        seed: seed of the draw.
        sweep: settings of the measurement: length of samples and number of rounds.

    Returns:
        The choices that were timed together with at least one alternative.
    """
    points = draw_points(table, comm.size, num_points, seed)
    group = comm._chooser.group
    stage = SweepStage(comm, sweep)
    try:
        contenders = {point: _contenders(table, group, point) for point in points}
        pairs = [(point, carrier) for point, carriers in contenders.items() for carrier in carriers]
        times = stage.measure_carriers(pairs, sweep.rounds)
    finally:
        stage.close()
    found = []
    for point, carriers in contenders.items():
        measured = {carrier: times[point, carrier] for carrier in carriers if (point, carrier) in times}
        if len(measured) > 1 and carriers[0] in measured:  # with a single carrier there is no choice
            found.append(_judge(point, carriers[0], measured))
    return found


def draw_points(table: Table, num_ranks: int, num_points: int, seed: int) -> list[CellKey]:
    """Draw cells (operation, class of types, size) that the table chooses for."""
    drawn = random.Random(seed)
    cells = [
        (op, dtypes, list(sizes))
        for (op, dtypes, ranks, busy), sizes in sorted(table.cells.items())
        if ranks == num_ranks and not busy and op != "send"  # "send" has one choice for all sizes
    ]
    points = []
    for _ in range(num_points if cells else 0):
        op, dtypes, sizes = drawn.choice(cells)
        least, most = max(4, min(sizes)), max(sizes)
        nbytes = round(math.exp(drawn.uniform(math.log(least), math.log(max(least, most))))) // 4 * 4
        points.append((op, dtypes, 0 if op == "barrier" else nbytes))
    return list(dict.fromkeys(points))


def _contenders(table: Table, group: Group, point: CellKey) -> list[str]:
    """Return the chosen carrier first, then the alternatives that may be faster.

    These are every library's own algorithm, schedules with times in the table near that size, and the schedules that
    are fast by the model. The table alone cannot select the schedules, since the table is what is checked.
    """
    op, dtypes, nbytes = point
    _, ranked = TablePolicy(table).explain(group, op, dtypes, nbytes)
    measured = [each.carrier for each in ranked if each.algorithm][:_MOST_SCHEDULES]
    modelled = candidates(point, group, table.fits)
    return list(dict.fromkeys([ranked[0].carrier, *group.backends, *measured, *modelled]))


def _judge(point: CellKey, chosen: str, times: Mapping[str, Sequence[float]]) -> RecheckedPoint:
    """Compare the chosen carrier with the best alternative."""
    others = [carrier for carrier in times if carrier != chosen]
    best = min(others, key=lambda carrier: median(times[carrier]))
    seen = ratio(times[best], times[chosen])
    found = seen.median, seen.low, seen.high
    return RecheckedPoint(*point, chosen, best, len(others), *found, holds=seen.low <= MOST_RATIO)
