"""Chooses by a table."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from hocket import _native
from hocket.comm.policy import (
    CHOOSABLE,
    LARGEST_NBYTES,
    WITH_COUNTS,
    Candidate,
    Choices,
    Group,
    Policy,
    Range,
    format_nbytes,
)
from hocket.tune.model import rank_by_model
from hocket.tune.table import Row, Table

# A backend is faster than another one if its median is by so much shorter, and either shorter than anything that was
# seen of the other, or its lower end clearly below the other's: what disturbs a measurement only ever adds to it, so
# the lower ends of intervals can be trusted.
_LEAST_GAIN = 0.05
_CLEAR_GAIN = 0.25
# Messages are matched within one library, and sender and receiver may see different sizes, as the ranks of an
# all_to_allv do: one choice for all (R8), made at this size.
_ONE_CHOICE = {"send": 64 << 10, "recv": 64 << 10, "all_to_allv": 256 << 10}


class TablePolicy(Policy):
    """For each operation the backend whose measured time is the shortest at the nearest measured size.

    Where none is clearly faster than another, the one that loses less next to a busy second backend is chosen, and then
    the one that the model prefers. Where nothing was measured the model decides. An operation with counts goes where
    the one with equal blocks would, at the mean size of its blocks.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def choices(self, group: Group) -> Choices:
        return {
            (op, dtypes): self._ranges(group, op, dtypes) for op in CHOOSABLE for dtypes in _native.DTYPE_CLASS_NAMES
        }

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[Candidate]]:
        if op in _ONE_CHOICE:
            nbytes = _ONE_CHOICE[op]
        elif op in WITH_COUNTS:
            nbytes //= group.size
        measured_size, sizes = self._nearest(group.size, op, dtypes)
        if not sizes:
            return f"{self.table.path} has no {op} of that kind, a model decides", rank_by_model(group, op, nbytes)
        nearest = _nearest_size(list(sizes), nbytes)
        rows = sizes[nearest]
        order = self._order(rows, group)
        candidates = [
            Candidate(name, rows[name].seconds, f"measured at {nearest} B")
            if name in rows
            else Candidate(name, None, "not measured")
            for name in order
        ]
        reason = f"the fastest of those measured in {self.table.path}"
        if len(candidates) > 1 and (best := candidates[0].seconds) and (second := candidates[1].seconds):
            reason = f"{second / best:.2f} times as fast as the second in {self.table.path}"
            if not _is_faster(rows[candidates[0].backend], rows[candidates[1].backend]):
                reason = f"as fast as the second in {self.table.path}, within the noise"
        if measured_size != group.size:
            reason += f"; measured between {measured_size} ranks, there are no times for {group.size}"
        if op in _ONE_CHOICE:
            reason += f"; one choice for all sizes, made at {format_nbytes(_ONE_CHOICE[op])}"
        return reason, candidates

    def expected_seconds(self, size: int, backend: str, op: str, dtypes: str, nbytes: int) -> float | None:
        """Return the time that the table predicts, between measured sizes on a straight line of logarithms."""
        _, sizes = self._nearest(size, op, dtypes)
        points = [(nbytes_, rows[backend].seconds) for nbytes_, rows in sizes.items() if backend in rows]
        if not points:
            return None
        place = bisect_left(points, (nbytes,))
        if place == 0:
            return points[0][1]
        if place == len(points):
            last_nbytes, last_s = points[-1]
            return last_s * max(1.0, nbytes / max(1, last_nbytes))
        (x0, y0), (x1, y1) = points[place - 1], points[place]
        share = (math.log1p(nbytes) - math.log1p(x0)) / (math.log1p(x1) - math.log1p(x0))
        return math.exp(math.log(y0) + share * (math.log(y1) - math.log(y0)))

    def _ranges(self, group: Group, op: str, dtypes: str) -> list[Range]:
        _, sizes = self._nearest(group.size, op, dtypes)
        if not sizes:
            order = tuple(each.backend for each in rank_by_model(group, op, 1))
            return [Range(LARGEST_NBYTES, order)]
        if op in _ONE_CHOICE:
            rows = sizes[_nearest_size(list(sizes), _ONE_CHOICE[op])]
            return [Range(LARGEST_NBYTES, self._order(rows, group))]
        unit = group.size if op in WITH_COUNTS else 1  # the size of those is that of all blocks together
        ranges: list[Range] = []
        measured = list(sizes)
        for nbytes, following in zip(measured, [*measured[1:], None], strict=True):
            most = LARGEST_NBYTES if following is None else (_border(nbytes, following) + 1) * unit - 1
            order = self._order(sizes[nbytes], group)
            if ranges and ranges[-1].ranking == order:
                ranges[-1] = Range(most, order)
            else:
                ranges.append(Range(most, order))
        return ranges

    def _order(self, rows: Mapping[str, Row], group: Group) -> tuple[str, ...]:
        """Best first; those that were not measured last."""
        left = [name for name in group.backends if name in rows]
        if not left:
            return tuple(group.backends)
        op = rows[left[0]].op
        modelled = [each.backend for each in rank_by_model(group, op, rows[left[0]].nbytes)]
        order: list[str] = []
        while left:
            best = min(left, key=lambda name: rows[name].seconds)
            equal = [name for name in left if not _is_faster(rows[best], rows[name])]
            chosen = min(equal, key=lambda name: (self._loss_when_busy(rows[name]), modelled.index(name)))
            order.append(chosen)
            left.remove(chosen)
        return (*order, *(name for name in group.backends if name not in rows))

    def _loss_when_busy(self, row: Row) -> float:
        """How much slower next to a busy second backend, in steps of a quarter; 0 where that was not measured."""
        busy = self.table.cells.get((row.op, row.dtypes, row.num_ranks, True), {}).get(row.nbytes, {}).get(row.backend)
        return 0.0 if busy is None else round(4 * busy.low / row.low)

    def _nearest(self, size: int, op: str, dtypes: str) -> tuple[int, Mapping[int, Mapping[str, Row]]]:
        """The measured number of ranks next to this one, and the rows by size.

        A message has one time, that of "send": its two ends have to choose alike.
        """
        op = "send" if op == "recv" else WITH_COUNTS.get(op, op)
        measured = {
            num_ranks: sizes
            for (each_op, each_dtypes, num_ranks, busy), sizes in self.table.cells.items()
            if (each_op, each_dtypes, busy) == (op, dtypes, False)
        }
        if not measured:
            return size, {}
        nearest = min(measured, key=lambda num_ranks: (abs(math.log(num_ranks / size)), num_ranks))
        return nearest, measured[nearest]


def _is_faster(row: Row, other: Row) -> bool:
    is_clear = row.seconds < other.low or row.low * (1 + _CLEAR_GAIN) < other.low
    return row.seconds * (1 + _LEAST_GAIN) < other.seconds and is_clear


def _border(nbytes: int, following: int) -> int:
    """Up to where a measured size stands for others: the geometric mean with the next one."""
    return math.isqrt(nbytes * following)


def _nearest_size(sizes: Sequence[int], nbytes: int) -> int:
    for size, following in itertools.pairwise(sizes):
        if nbytes <= _border(size, following):
            return size
    return sizes[-1]
