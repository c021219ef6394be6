"""Compare schedules with the libraries' own algorithms.

A model selects the schedules that are worth measuring; the measurements decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from hocket.collectives import algorithms
from hocket.collectives.registry import Algorithm
from hocket.collectives.simulate import simulate
from hocket.collectives.source import format_algorithm, round_num_blocks
from hocket.comm.policy import Group, join_carrier, split_carrier, total_nbytes
from hocket.sim import Hosts, Link
from hocket.tune.fit import Fit, fit_line
from hocket.tune.model import typical_link
from hocket.tune.table import TableRow

OPS = ("all_reduce", "reduce", "scan", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
LEAST_NBYTES = 1024  # below, the latency of single messages decides, and libraries have no more messages than schedules
_MOST_CANDIDATES = 3
_MOST_PREDICTED_RATIO = 2.0  # to the best predicted time; slower schedules are not measured
_MOST_FIRST_RATIO = 1.25  # to the best median of the first stage; slower schedules are not measured any further
_LEAST_SIZE_RATIO = 1.3  # of neighbouring sizes; between closer sizes, no crossing is searched
_MOST_HALVINGS = 3
_NUM_SEGMENTS = (1, 4, 16)  # of hierarchical schedules, whose levels overlap segment by segment

Key = tuple[str, str, int]  # operation, class of types, bytes
Measure = Callable[[Sequence[tuple[Key, str]], int], Mapping[tuple[Key, str], Sequence[float]]]
"""(pairs, rounds) -> seconds of every round. A pair is a cell and a carrier as in `Range.ranking`. The result omits
pairs that cannot be carried or take too long."""


@dataclass(frozen=True)
class Contest:
    """A measurement of schedules beside the libraries' own algorithms.

    Args:
        group: the communicator.
        rounds: number of rounds of the last stage.
        measure: function that times pairs; its result is equal on all ranks.
        gamma_s: seconds per byte of a reduction.
    """

    group: Group
    rounds: int
    measure: Measure
    gamma_s: float

    def fit_links(self, sizes: Sequence[int]) -> list[Fit]:
        """Fit each backend's link to the time in which a chain of one block sends an array along all ranks."""
        cells: list[tuple[Key, str]] = [
            (("broadcast", "moved", nbytes), join_carrier(backend, "chain(num_blocks=1)"))
            for backend in self.group.backends
            for nbytes in sizes
        ]
        times = self.measure(cells, 5)
        fits = []
        for backend in self.group.backends:
            points = [
                (float(key[2]), self._message_s(min(seconds), key[2]))
                for (key, carrier), seconds in times.items()
                if split_carrier(carrier)[0] == backend
            ]
            if not points:  # the time limit allowed no measurement
                continue
            alpha_s, beta_s, misfit = fit_line(points)
            fits.append(Fit(backend, alpha_s, beta_s, self.gamma_s, misfit))
        return fits

    def _message_s(self, seconds: float, nbytes: int) -> float:
        """Return the time of one message, given the time of a chain along all ranks.

        With several hosts, it is the time of a message between hosts.
        """
        group = self.group
        within = group.size - group.num_hosts if 1 < group.num_hosts < group.size else 0
        within_s = within * typical_link(1).message_s(nbytes)
        return max(seconds - within_s, 0.1 * seconds) / max(1, group.size - 1 - within)

    def run(self, rows: Sequence[TableRow], fits: Sequence[Fit]) -> Iterator[TableRow]:
        """Measure the schedules with the best predicted times, beside the fastest of the libraries' own algorithms.

        This is successive halving: all candidates get three rounds, and those that are not clearly slower get `rounds`
        more. Then crossings are searched: between neighbouring sizes with different winners, both winners are measured
        at a size half-way.

        Args:
            rows: rows of the libraries' own algorithms.
            fits: links fitted to the backends.

        Returns:
            More rows; rows of libraries that were measured again replace the earlier ones.
        """
        cells = {key: each for key, each in _best_rows(rows).items() if key[0] in OPS and key[2] >= LEAST_NBYTES}
        contenders = {
            key: list(dict.fromkeys((row.carrier, *candidates(key, self.group, fits))))
            for key, row in cells.items()
            if key[1] != "half"  # schedules round to 16 bits at every step; the libraries here do not
        }
        first = self.measure(_pairs(contenders), 3)
        survivors = {}
        for key, carriers in _fully_measured(contenders, first).items():
            best = min(median(first[key, each]) for each in carriers)
            kept = [each for each in carriers[1:] if median(first[key, each]) <= _MOST_FIRST_RATIO * best]
            if kept:
                survivors[key] = [carriers[0], *kept]
        second = self.measure(_pairs(survivors), self.rounds)
        found = {pair: self._row(pair, seconds) for pair, seconds in second.items()}
        winners = {key: row.carrier for key, row in cells.items()}
        for key, carriers in _fully_measured(survivors, second).items():
            winners[key] = _fastest(key, carriers, found)
        for _ in range(_MOST_HALVINGS):
            midpoints = dict(_midpoints(winners))
            if not midpoints:
                break
            measured = self.measure(_pairs(midpoints), self.rounds)
            found |= {each: self._row(each, seconds) for each, seconds in measured.items()}
            for key, pair in _fully_measured(midpoints, measured).items():
                winners[key] = _fastest(key, pair, found)
        yield from found.values()

    def _row(self, pair: tuple[Key, str], seconds: Sequence[float]) -> TableRow:
        (op, dtypes, nbytes), carrier = pair
        backend, algorithm = split_carrier(carrier)
        return TableRow.of_samples(op, dtypes, self.group.size, nbytes, backend, False, seconds, algorithm)


def candidates(key: Key, group: Group, fits: Sequence[Fit]) -> list[str]:
    """Return the schedules with the best predicted times over all backends, fastest first.

    The result is empty if no schedule is worth measuring.

    Args:
        key: operation, class of types, bytes.
        group: the communicator.
        fits: links fitted to the backends.

    Returns:
        Carriers as in `Range.ranking`.
    """
    op, dtypes, nbytes = key
    if op not in OPS or dtypes == "half" or nbytes < LEAST_NBYTES:  # schedules round 16-bit floats at every step
        return []
    predicted = sorted(
        (seconds, join_carrier(fit.backend, name))
        for fit in fits
        for name, seconds in predict_all(op, nbytes, group, fit.link)
    )
    return [
        carrier
        for seconds, carrier in predicted[:_MOST_CANDIDATES]
        if seconds <= _MOST_PREDICTED_RATIO * predicted[0][0]
    ]


def predict_all(op: str, nbytes: int, group: Group, link: Link) -> Iterator[tuple[str, float]]:
    """Yield every algorithm of an operation with its best parameters, and its predicted time in seconds.

    With several ranks on each of several hosts, the time is simulated, since links within and between hosts differ. On
    one host, or with one rank per host, it follows from the formula.

    Args:
        op: name of the operation.
        nbytes: as in `Record.nbytes`.
        group: the communicator.
        link: link between any two ranks, or between hosts.
    """
    seen = set()
    for algorithm, parameters in tuned_algorithms(op, nbytes, group, link):
        seconds = predict(algorithm, parameters, nbytes, group, link)
        if group.size == 2 and seconds in seen:  # between two ranks, many algorithms are identical
            continue
        seen.add(seconds)
        yield format_algorithm(algorithm.name, parameters), seconds


def predict(algorithm: Algorithm, parameters: Mapping[str, Any], nbytes: int, group: Group, link: Link) -> float:
    """Return the predicted time of an algorithm in seconds; see `predict_all`."""
    total = total_nbytes(algorithm.collective, nbytes, group.size)
    if 1 < group.ranks_per_host < group.size:
        fabric = Hosts(typical_link(1), link, group.ranks_per_host)
        return simulate(algorithm.schedule(group.size, **parameters), total, fabric).seconds
    return algorithm.seconds(link, group.size, total, **parameters)


def tuned_algorithms(op: str, nbytes: int, group: Group, link: Link) -> Iterator[tuple[Algorithm, dict[str, Any]]]:
    """Yield every algorithm that supports an operation on this group, with its best known parameters.

    Args:
        op, nbytes, group, link: as for `predict_all`.
    """
    total = total_nbytes(op, nbytes, group.size)
    for algorithm in algorithms(op):
        if algorithm.restriction(group.size) is not None:
            continue
        for parameters in _parameter_sets(algorithm, group):
            if "num_blocks" in algorithm.parameters:
                best = algorithm.best_num_blocks(link, group.size, total, **parameters)
                parameters["num_blocks"] = round_num_blocks(best)
            yield algorithm, {**algorithm.parameters, **parameters}


def _parameter_sets(algorithm: Algorithm, group: Group) -> Iterator[dict[str, Any]]:
    """Yield the sets of parameters to try, without defaults and without the number of blocks."""
    if "ranks_per_host" not in algorithm.parameters:
        yield {}
        return
    levels = {"ranks_per_host": group.ranks_per_host, "ranks_per_domain": group.ranks_per_domain}
    if group.num_hosts == 1:  # then the domains are the only level
        levels = {"ranks_per_host": group.ranks_per_domain}
    elif "ranks_per_domain" not in algorithm.parameters or group.ranks_per_domain == group.ranks_per_host:
        del levels["ranks_per_domain"]
    if not 1 < levels["ranks_per_host"] < group.size:
        return
    for num_segments in _NUM_SEGMENTS if "num_segments" in algorithm.parameters else (1,):
        yield levels if num_segments == 1 else {**levels, "num_segments": num_segments}


def _fully_measured(
    contenders: Mapping[Key, Sequence[str]], times: Mapping[tuple[Key, str], object]
) -> dict[Key, Sequence[str]]:
    """Return the cells that can be compared, because all their carriers were measured."""
    return {key: carriers for key, carriers in contenders.items() if all((key, each) in times for each in carriers)}


def _fastest(key: Key, carriers: Sequence[str], found: Mapping[tuple[Key, str], TableRow]) -> str:
    return min(carriers, key=lambda carrier: found[key, carrier].seconds)


def _best_rows(rows: Sequence[TableRow]) -> dict[Key, TableRow]:
    best: dict[Key, TableRow] = {}
    for row in rows:
        key = row.op, row.dtypes, row.nbytes
        if not row.busy and (key not in best or row.seconds < best[key].seconds):
            best[key] = row
    return best


def _pairs(carriers: Mapping[Key, Sequence[str]]) -> list[tuple[Key, str]]:
    return [(key, carrier) for key, of_key in carriers.items() for carrier in of_key]


def _midpoints(winners: Mapping[Key, str]) -> Iterator[tuple[Key, tuple[str, str]]]:
    """Yield cells half-way between neighbouring sizes with different winners, each with both winners."""
    ordered = sorted(winners)
    for key, following in pairwise(ordered):
        if key[:2] != following[:2] or winners[key] == winners[following]:
            continue
        if following[2] <= _LEAST_SIZE_RATIO * key[2]:
            continue
        middle = math.isqrt(key[2] * following[2]) // 4 * 4
        yield (*key[:2], middle), (winners[key], winners[following])
