"""Choices by a table for another library, among that library's own algorithms.

Only algorithms that hocket also has as schedules are considered, since their times are known: from the table if it has
them, measured over one backend; otherwise from the formula over the fitted link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from hocket.collectives import find_algorithm
from hocket.collectives.source import parse_algorithm
from hocket.comm.policy import total_nbytes
from hocket.sim import Link
from hocket.tune.fit import link_over
from hocket.tune.model import typical_link
from hocket.tune.sweep import SIZES
from hocket.tune.table import Table


@dataclass(frozen=True)
class Choice:
    """The best algorithm at one size.

    Args:
        nbytes: size of the array, or of all ranks' blocks together.
        algorithm: name of the schedule.
        num_blocks: number of segments into which the schedule cuts the array.
        comment: the schedule's time, and the origin of this time.
    """

    nbytes: int
    algorithm: str
    num_blocks: int
    comment: str

    @property
    def segment_nbytes(self) -> int:
        """Bytes of a segment, in whole KiB; 0 if the array is one segment."""
        return max(1, self.nbytes // self.num_blocks >> 10) << 10 if self.num_blocks > 1 else 0


def choices(
    table: Table, counterparts: Mapping[str, Collection[str]], ranks: Sequence[int], backend: str
) -> Iterator[tuple[str, int, list[Choice]]]:
    """Yield (collective, number of ranks, choices by size), if at least one choice exists.

    Args:
        table: the measured table.
        counterparts: for each collective, the schedules that the library also has; of equally fast ones, the first is
            chosen.
        ranks: numbers of ranks; times that were not measured are modelled.
        backend: backend over which the schedules were measured.
    """
    link = link_over(backend, table.fits) or typical_link(table.machine.num_hosts)
    for op, names in counterparts.items():
        for num_ranks in ranks:
            if num_ranks < 2:
                continue
            sizes = {row.nbytes for row in table.rows if (row.op, row.num_ranks) == (op, num_ranks)}
            best = [_best(table, link, op, names, num_ranks, nbytes, backend) for nbytes in sorted(sizes or SIZES)]
            found = [each for each in best if each is not None]
            if found:
                yield op, num_ranks, found


def first_of_each(found: Sequence[Choice], key: Callable[[Choice], object]) -> list[Choice]:
    """Return the choice at the smallest size of every range of sizes with equal keys."""
    return [next(equal) for _, equal in groupby(found, key)]


def _best(
    table: Table, link: Link, op: str, names: Collection[str], num_ranks: int, nbytes: int, backend: str
) -> Choice | None:
    total = total_nbytes(op, nbytes, num_ranks)
    found = _measured(table, op, num_ranks, nbytes, backend)
    candidates = []
    for name in names:
        algorithm = find_algorithm(op, name)
        if name in found:
            candidates.append(found[name])
        elif algorithm.restriction(num_ranks) is None:
            parameters = dict(algorithm.parameters)
            if "num_blocks" in parameters:
                parameters["num_blocks"] = algorithm.best_num_blocks(link, num_ranks, total)
            seconds = algorithm.seconds(link, num_ranks, total, **parameters)
            candidates.append((seconds, "modelled", name, _num_blocks(parameters, num_ranks)))
    if not candidates:
        return None
    seconds, source, name, num_blocks = min(candidates, key=itemgetter(0))
    return Choice(total, name, num_blocks, f"{name}, {seconds * 1e6:.3g} us {source} at {total} B")


def _measured(
    table: Table, op: str, num_ranks: int, nbytes: int, backend: str
) -> dict[str, tuple[float, str, str, int]]:
    found: dict[str, tuple[float, str, str, int]] = {}
    sizes = table.cells.get((op, "full" if "reduce" in op else "moved", num_ranks, False), {})
    for row in sizes.get(nbytes, {}).values():
        if row.backend == backend and row.algorithm:
            algorithm, parameters = parse_algorithm(op, row.algorithm)
            each = row.seconds, "measured", algorithm.name, _num_blocks(parameters, num_ranks)
            found[algorithm.name] = min(each, found.get(algorithm.name, each))
    return found


def _num_blocks(parameters: Mapping[str, Any], num_ranks: int) -> int:
    return int(parameters.get("num_blocks", parameters.get("num_segments", 0) * num_ranks or 1))
