"""The policy that chooses by a table."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hocket import _native
from hocket.comm.policy import (
    LARGEST_NBYTES,
    WITH_COUNTS,
    Choices,
    Group,
    Policy,
    Range,
    RankedCarrier,
    format_nbytes,
    range_of,
    split_carrier,
    total_nbytes,
)
from hocket.sim import Link
from hocket.tune.fit import link_over
from hocket.tune.model import KINDS, in_order, predict_seconds, rank_by_model, typical_link
from hocket.tune.table import Table, TableRow, TableRule

# A backend is faster than another one if its median is shorter by _LEAST_GAIN, and either its median is below the
# other's whole interval, or its lower end is below the other's by _CLEAR_GAIN: disturbances only lengthen times, so the
# lower ends of intervals are reliable.
_LEAST_GAIN = 0.05
_CLEAR_GAIN = 0.25
# Of those that are as fast, one whose interval ends further above its median than another's by this is not taken: it is
# slow now and then, and a program waits for the slowest of its operations.
_UNSTEADY = 0.1
# Messages are matched within one library, but sender and receiver may see different sizes, like the ranks of an
# all_to_allv. Such an operation therefore has one choice for all sizes (R8), made at this size.
_ONE_CHOICE = {"send": 64 << 10, "recv": 64 << 10, "all_to_allv": 256 << 10}


SPLITTABLE = ("all_reduce", "reduce", "scan", "broadcast", "send")
"""Operations that two libraries can carry parts of; "send" stands for the messages of schedules."""
_PARTS = 128  # shares are multiples of 1 / _PARTS
Sizes = Mapping[int, Mapping[str, TableRow]]
"""Rows of one operation: by size in ascending order, then by carrier."""


class TablePolicy(Policy):
    """A policy that chooses, for each operation, the backend with the shortest time at the nearest measured size.

    If none is clearly faster, it chooses the one that slows down less beside a busy second backend, then one that is
    not slow now and then, and then the one that the model prefers. Without measurements, the model decides. An
    operation with counts uses the choice of the same operation with equal blocks, at the mean size of its blocks.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> row = hk.tune.Row("all_reduce", "full", 1, 1024, "shm", False, 2e-6, 1.9e-6, 2.1e-6)
        >>> policy = hk.tune.TablePolicy(hk.tune.Table(machine, (row,)))
        >>> with hk.init(backends=["shm"], policy=policy) as comm:
        ...     comm.explain("all_reduce", 1024).reason
        'the fastest of those measured in a table in memory'
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def identity(self, group: Group) -> dict[str, str]:
        return {**super().identity(group), "table": os.path.abspath(self.table.path), "hash": self.table.hash}

    def choices(self, group: Group) -> Choices:
        return {kind: self.ranges(group, *kind) for kind in KINDS}

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        block_nbytes = nbytes // group.size if op in WITH_COUNTS else nbytes
        nbytes = timed_nbytes(op, group, nbytes)
        measured_size, sizes = self._rows_for(group, op, dtypes)
        chosen = range_of(self._ranges_of_op(group, timed_as(op), dtypes), nbytes)
        if not sizes and (timed_as(op), dtypes, group.size) in self.table.ranges:
            return chosen.reason or f"a rule of {self.table.path}", [_unmeasured(each) for each in chosen.ranking]
        if not sizes:
            return f"{self.table.path} has no {op} of that kind, a model decides", rank_by_model(group, op, nbytes)
        borders = zip(sizes, self._borders(sizes, group), strict=True)
        nearest = next(size for size, most in borders if nbytes <= most)
        rows = sizes[nearest]
        order = chosen.ranking
        carried_over = self._carried_over(group, measured_size)
        candidates = [
            self._candidate(sizes, name, nearest, block_nbytes, group, carried_over)
            if name in rows
            else _unmeasured(name)
            for name in order
        ]
        where = f"in {self.table.path}" + ("" if nearest == block_nbytes else f", at {format_nbytes(nearest)}")
        reason = f"the fastest of those measured {where}"
        if len(order) > 1 and order[0] in rows and order[1] in rows:
            first_row, second_row = (rows[name] for name in order[:2])
            reason = f"{second_row.seconds / first_row.seconds:.2f} times as fast as the second {where}"
            if first_row.high >= second_row.low or not _is_faster(first_row, second_row):
                reason = f"not distinguishable from the second {where}"
        reason = chosen.reason or reason
        if measured_size != group.size:
            reason += f"; measured between {measured_size} ranks, there are no times for {group.size}"
        if group.num_hosts != self.table.machine.num_hosts:
            reason += f"; measured on {self.table.machine.num_hosts} hosts, there are no times for {group.num_hosts}"
        if op in _ONE_CHOICE:
            reason += f"; one choice for all sizes, made at {format_nbytes(_ONE_CHOICE[op])}"
        return reason, candidates

    def expected_seconds(self, size: int, carrier: str, op: str, dtypes: str, nbytes: int) -> float | None:
        """Return the time that the table predicts; between measured sizes, logarithms are interpolated linearly.

        For a backend alone it is the time of the library's own algorithm; for a backend with a schedule, which may have
        been measured at few sizes, that of the fastest algorithm over this backend.
        """
        backend, algorithm = split_carrier(carrier)
        _, sizes = self._nearest(size, op, dtypes)
        points = []
        for each, rows in sizes.items():
            times = [
                row.seconds for row in rows.values() if row.backend == backend and (algorithm or not row.algorithm)
            ]
            if times:
                points.append((each, min(times)))
        return seconds_at(points, nbytes) if points else None

    def shares(self, group: Group, backend: str) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Return the shares with which both libraries finish at the same time, computed from the time of each alone."""
        first, plus, second = backend.partition("+")
        if not plus:
            return {}
        found = {op: self._shares_of(group, op, first, second) for op in SPLITTABLE}
        return {op: ranges for op, ranges in found.items() if ranges}

    def _shares_of(self, group: Group, op: str, first: str, second: str) -> list[tuple[int, float]]:
        dtypes = "full" if op in _native.REDUCING_OPS else "moved"
        measured = self._nearest(group.size, op, dtypes)[1]
        points = {
            backend: [(nbytes, rows[backend].seconds) for nbytes, rows in measured.items() if backend in rows]
            for backend in (first, second)
        }
        if not all(points.values()):
            return []

        def is_ahead(share: float, nbytes: int) -> bool:
            """Return whether the first library would finish before the second."""
            return _interpolated(points[first], share * nbytes) < _interpolated(points[second], (1 - share) * nbytes)

        return [
            (most, bisect_left(range(_PARTS), True, key=lambda part: not is_ahead(part / _PARTS, nbytes)) / _PARTS)
            for nbytes, most in with_borders(list(measured))
        ]

    def with_rules(self) -> Table:
        """Return the table with rules for all operations that it has times of; existing rules stay."""
        names, num_hosts = list(self.table.machine.backends), self.table.machine.num_hosts
        keys = dict.fromkeys((op, dtypes, num_ranks) for op, dtypes, num_ranks, _ in self.table.cells)
        rules = [
            TableRule(op, dtypes, num_ranks, each.most_nbytes, each.ranking, each.reason)
            for op, dtypes, num_ranks in keys
            if (op, dtypes, num_ranks) not in self.table.ranges
            for each in self._ranges_of_op(Group(num_ranks, names, num_hosts), op, dtypes)
        ]
        return replace(self.table, rules=(*self.table.rules, *rules))

    def _carried_over(self, group: Group, measured_size: int) -> str:
        """Return words on the origin of times of another number of ranks or hosts; "" for these numbers."""
        num_hosts = self.table.machine.num_hosts
        parts = [] if measured_size == group.size else [f"{measured_size} ranks"]
        if num_hosts != group.num_hosts:
            parts.append("one host" if num_hosts == 1 else f"{num_hosts} hosts")
        return f" between {' on '.join(parts)}, carried over by the model" if parts else ""

    def _candidate(
        self, sizes: Sizes, carrier: str, nearest: int, nbytes: int, group: Group, carried_over: str
    ) -> RankedCarrier:
        """Return a carrier with its time at a size.

        The time has an interval unless it follows from the times of other sizes.

        Args:
            sizes: rows of one operation.
            carrier: as in `Range.ranking`.
            nearest: a size at which the carrier was measured.
            nbytes: the size of the operation.
            group: the communicator.
            carried_over: from `_carried_over`.
        """
        points = [(size, rows[carrier].seconds) for size, rows in sizes.items() if carrier in rows]
        place = bisect_left(points, (nbytes,))
        last_nbytes, last_s = points[-1]
        here = sizes.get(nbytes, {}).get(carrier)
        row = here or sizes[nearest][carrier]
        interval: tuple[float, float] | None = None
        is_measured = not carried_over
        if here or place == 0 or len(points) == 1:
            interval, source = (row.low, row.high), f"measured at {row.nbytes} B"
        elif place == len(points):
            row, is_measured = replace(row, nbytes=nbytes, seconds=last_s * nbytes / last_nbytes), False
            source = f"measured at {last_nbytes} B, and scaled by size"
        else:
            row = replace(row, nbytes=nbytes, seconds=_interpolated(points, nbytes))
            source = f"between those measured at {points[place - 1][0]} and {points[place][0]} B"
        predicted_s = formula_seconds(row, group, self.table) if row.algorithm and self.table.fits else None
        if row.source == "run":
            source = source.replace("measured", "measured while running", 1)
        return RankedCarrier(
            row.backend, row.seconds, source + carried_over, row.algorithm, predicted_s, interval, is_measured
        )

    def ranges(self, group: Group, op: str, dtypes: str) -> Sequence[Range]:
        """Return the ranges of one operation and class of types, as in `choices`."""
        return ranges_as_called(op, group, self._ranges_of_op(group, timed_as(op), dtypes))

    def fitted_link(self, group: Group, backend: str) -> Link | None:
        """See `Policy.fitted_link`."""
        if group.num_hosts != self.table.machine.num_hosts:
            return None
        return link_over(backend, self.table.fits)

    def _ranges_of_op(self, group: Group, op: str, dtypes: str) -> Sequence[Range]:
        """Return the ranges of the table's rules, or, without rules, the ranges that follow from its times."""
        rules = self.table.ranges.get((op, dtypes, group.size))
        if rules and group.num_hosts == self.table.machine.num_hosts:
            return [replace(each, ranking=ranking_for(group, each.ranking)) for each in rules]
        _, sizes = self._rows_for(group, op, dtypes)
        if not sizes:
            return in_order(each.backend for each in rank_by_model(group, op, 1))
        return merge_equal_ranges(map(Range, self._borders(sizes, group), self._orders(sizes, group)))

    def _orders(self, sizes: Sizes, group: Group) -> list[tuple[str, ...]]:
        orders: list[tuple[str, ...]] = []
        for rows in sizes.values():
            orders.append(self._order(rows, group, orders[-1][0] if orders else ""))
        return orders

    def _borders(self, sizes: Sizes, group: Group) -> list[int]:
        """Return, for every measured size, the largest size that it stands for."""
        winners = [order[0] for order in self._orders(sizes, group)]
        neighbours = pairwise(zip(sizes.items(), winners, strict=True))
        return [*(_crossing(*each, *following) for (each, following) in neighbours), LARGEST_NBYTES]

    def _order(self, rows: Mapping[str, TableRow], group: Group, kept: str = "") -> tuple[str, ...]:
        """Return the carriers from best to worst; backends that were not measured come last.

        Args:
            rows: rows of one size.
            group: communicator whose backends are ranked.
            kept: best carrier of the size before. It stays the best if another one is only equal, so that noise alone
                changes nothing.
        """
        left = [name for name, row in rows.items() if row.backend in group.backends]
        if not left:
            return tuple(group.backends)
        op = rows[left[0]].op
        modelled = [each.backend for each in rank_by_model(group, op, rows[left[0]].nbytes)]
        order: list[str] = []
        while left:
            best = min(left, key=lambda name: rows[name].seconds)
            equal = [name for name in left if not _is_faster(rows[best], rows[name])]
            steady = min(map(_excess, (rows[name] for name in equal))) + _UNSTEADY
            chosen = min(
                equal,
                key=lambda name: (
                    self._slowdown_when_busy(rows[name]),
                    _excess(rows[name]) > steady,
                    name != kept,
                    modelled.index(rows[name].backend),
                    rows[name].algorithm != "",  # a library's own algorithm before an equal schedule
                    rows[name].seconds,
                ),
            )
            order.append(chosen)
            left.remove(chosen)
        return (*order, *(name for name in group.backends if name not in rows))

    def _slowdown_when_busy(self, row: TableRow) -> float:
        """Return the slowdown beside a busy second backend, in steps of a quarter; 0 if it was not measured."""
        busy = self.table.cells.get((row.op, row.dtypes, row.num_ranks, True), {}).get(row.nbytes, {}).get(row.carrier)
        return 0.0 if busy is None else round(4 * busy.low / row.low)

    def _rows_for(self, group: Group, op: str, dtypes: str) -> tuple[int, Sizes]:
        """Return the result of `_nearest`; the model scales times of another number of ranks or hosts."""
        measured_size, sizes = self._nearest(group.size, op, dtypes)
        is_measured = measured_size == group.size and group.num_hosts == self.table.machine.num_hosts
        if is_measured or not sizes:
            return measured_size, sizes
        carried = {
            nbytes: {
                name: scaled
                for name, row in rows.items()
                if (scaled := carry_over(row, replace(group, backends=[row.backend]), self.table)) is not None
            }
            for nbytes, rows in sizes.items()
        }
        return measured_size, {nbytes: rows for nbytes, rows in carried.items() if rows}

    def _nearest(self, size: int, op: str, dtypes: str) -> tuple[int, Sizes]:
        """Return the measured number of ranks that is nearest to `size`, and its rows by size."""
        op = timed_as(op)
        measured = {
            num_ranks: sizes
            for (each_op, each_dtypes, num_ranks, busy), sizes in self.table.cells.items()
            if (each_op, each_dtypes, busy) == (op, dtypes, False)
        }
        if not measured:
            return size, {}
        nearest = min(measured, key=lambda num_ranks: (abs(math.log(num_ranks / size)), num_ranks))
        return nearest, measured[nearest]


def _interpolated(points: Sequence[tuple[int, float]], nbytes: float, on_logs: bool = False) -> float:
    """Return the seconds at a size, by linear interpolation between measured sizes.

    With `on_logs`, logarithms are interpolated. Otherwise the result does not fall with the size, and the arithmetic
    gives equal results on every host.
    """
    if len(points) == 1 or nbytes <= points[0][0]:
        return points[0][1]
    place = min(bisect_left(points, (nbytes,)), len(points) - 1)
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    if not on_logs:
        return max(y0, y0 + (nbytes - x0) * (y1 - y0) / (x1 - x0))
    share = (math.log1p(nbytes) - math.log1p(x0)) / (math.log1p(x1) - math.log1p(x0))
    return math.exp(math.log(y0) + share * (math.log(y1) - math.log(y0)))


def seconds_at(points: Sequence[tuple[int, float]], nbytes: int) -> float:
    """Return the time at a size: between measured sizes on logarithms, beyond the last one in proportion.

    Args:
        points: sizes in ascending order, and their seconds.
        nbytes: the size.
    """
    last_nbytes, last_s = points[-1]
    if nbytes > last_nbytes:
        return last_s * max(1.0, nbytes / max(1, last_nbytes))
    return _interpolated(points, nbytes, on_logs=True)


def timed_as(op: str) -> str:
    """Return the operation whose times stand for this one.

    Both ends of a message must make the same choice, so "recv" has the times of "send".
    """
    return "send" if op == "recv" else WITH_COUNTS.get(op, op)


def timed_nbytes(op: str, group: Group, nbytes: int) -> int:
    """Return the size at which the operation of `timed_as` is timed."""
    if op in _ONE_CHOICE:
        return _ONE_CHOICE[op]
    return nbytes // group.size if op in WITH_COUNTS else nbytes


def ranges_as_called(op: str, group: Group, ranges: Sequence[Range]) -> Sequence[Range]:
    """Convert the ranges of the operation that `timed_as` returns to those of the operation itself."""
    if op in _ONE_CHOICE:
        return [replace(range_of(ranges, _ONE_CHOICE[op]), most_nbytes=LARGEST_NBYTES)]
    if op not in WITH_COUNTS:
        return ranges
    return [  # the size of an operation with counts is that of all blocks together
        each
        if each.most_nbytes == LARGEST_NBYTES
        else replace(each, most_nbytes=(each.most_nbytes + 1) * group.size - 1)
        for each in ranges
    ]


def ranking_for(group: Group, ranking: Sequence[str]) -> tuple[str, ...]:
    """Return the carriers of a ranking that this group has, followed by its other backends."""
    available = [each for each in ranking if split_carrier(each)[0] in group.backends]
    return tuple(dict.fromkeys((*available, *group.backends)))


def _unmeasured(carrier: str) -> RankedCarrier:
    backend, algorithm = split_carrier(carrier)
    return RankedCarrier(backend, None, "not measured", algorithm)


def _is_faster(row: TableRow, other: TableRow) -> bool:
    is_clear = row.seconds < other.low or row.low * (1 + _CLEAR_GAIN) < other.low
    return row.seconds * (1 + _LEAST_GAIN) < other.seconds and is_clear


def _excess(row: TableRow) -> float:
    """Return the distance from the median to the end of the interval, as a share of the median."""
    return row.high / row.seconds - 1 if row.seconds else 0.0


def carry_over(row: TableRow, group: Group, table: Table) -> TableRow | None:
    """Return a row for another number of ranks: its time changes by the same factor as the predicted time.

    Returns:
        The row; None if the algorithm does not support that number of ranks.
    """
    if not row.algorithm:
        then = replace(group, size=row.num_ranks)
        factor = predict_seconds(row.backend, row.op, group, row.nbytes) / predict_seconds(
            row.backend, row.op, then, row.nbytes
        )
    else:
        now_s, then_s = (formula_seconds(row, replace(group, size=n), table) for n in (group.size, row.num_ranks))
        if now_s is None or then_s is None:
            return None
        factor = now_s / then_s if then_s > 0 else 1.0
    return replace(
        row, num_ranks=group.size, seconds=row.seconds * factor, low=row.low * factor, high=row.high * factor
    )


def formula_seconds(row: TableRow, group: Group, table: Table) -> float | None:
    """Return the time of a row's schedule by its formula, for this group and the link fitted to its backend.

    Returns:
        Seconds; None if the algorithm does not support that number of ranks, or was built for other hosts.
    """
    from hocket.collectives.source import parse_algorithm  # needs NumPy, which rows without a schedule do not

    algorithm, parameters = parse_algorithm(row.op, row.algorithm)
    if algorithm.restriction(group.size) is not None:
        return None
    if "ranks_per_host" in parameters and (group.size, group.num_hosts) != (row.num_ranks, table.machine.num_hosts):
        return None
    link = link_over(row.backend, table.fits) or typical_link(group.num_hosts)
    return algorithm.seconds(link, group.size, total_nbytes(row.op, row.nbytes, group.size), **parameters)


def border(nbytes: int, following: int) -> int:
    """Return the border between two measured sizes: their geometric mean."""
    return math.isqrt(nbytes * following)


def with_borders(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return every measured size with the largest size that it stands for."""
    borders = [border(each, following) for each, following in pairwise(sizes)]
    return list(zip(sizes, [*borders, LARGEST_NBYTES], strict=True))


def merge_equal_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Merge neighbouring ranges that have the same ranking and the same reason; ranges are in order of size."""
    found: list[Range] = []
    for each in ranges:
        if found and replace(found[-1], most_nbytes=each.most_nbytes) == each:
            found.pop()
        found.append(each)
    return found


def _crossing(
    measured: tuple[int, Mapping[str, TableRow]],
    winner: str,
    then: tuple[int, Mapping[str, TableRow]],
    next_winner: str,
) -> int:
    """Return the largest size for which the winner at one measured size stands.

    This is where the lines through the times of both winners cross, on logarithmic scales.
    """
    (nbytes, rows), (following, next_rows) = measured, then
    if winner == next_winner or not {winner, next_winner} <= rows.keys() & next_rows.keys() or not nbytes:
        return border(nbytes, following)
    ahead = math.log(rows[next_winner].seconds / rows[winner].seconds)
    behind = math.log(next_rows[winner].seconds / next_rows[next_winner].seconds)
    if ahead < 0 or behind < 0 or ahead + behind == 0:  # a winner was chosen by other criteria than its time
        return border(nbytes, following)
    share = ahead / (ahead + behind)
    return min(following - 1, int(nbytes * (following / nbytes) ** share))
