"""Schedules against the libraries' own ways: a model says which are worth measuring, measurements which is chosen."""

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
LEAST_NBYTES = 1024  # below, latencies of single messages decide, which libraries have no more of than schedules
_MOST_CANDIDATES = 3
_WORTH_A_TRY = 2.0  # times the time of the best by the model
_LEFT_BEHIND = 1.25  # times the best median of the first stage: not measured any further
_CLOSE_ENOUGH = 1.3  # sizes between which a crossing is not looked for any more
_MOST_HALVINGS = 3
_NUM_SEGMENTS = (1, 4, 16)  # of hierarchies, whose levels overlap in segments

Key = tuple[str, str, int]  # operation, class of types, bytes
Measure = Callable[[Sequence[tuple[Key, str]], int], Mapping[tuple[Key, str], Sequence[float]]]
"""(what to measure, rounds) -> seconds of every round; a cell and a carrier as in `Range.ranking` are measured. What
cannot be carried, or takes too long, is left out."""


@dataclass(frozen=True)
class Contest:
    """What schedules are measured, and how.

    Args:
        group: the communicator.
        rounds: of the last stage.
        measure: times cells; the same answer on all ranks.
        gamma_s: seconds per byte of reducing.
    """

    group: Group
    rounds: int
    measure: Measure
    gamma_s: float

    def fit_links(self, sizes: Sequence[int]) -> list[Fit]:
        """Fit each backend's link to the time of sending an array along all ranks, which a chain of one block does."""
        cells: list[tuple[Key, str]] = [
            (("broadcast", "moved", nbytes), join_carrier(backend, "chain(num_blocks=1)"))
            for backend in self.group.backends
            for nbytes in sizes
        ]
        times = self.measure(cells, 5)
        fits = []
        for backend in self.group.backends:
            points = [
                (float(key[2]), self._crossing_s(min(seconds), key[2]))
                for (key, carrier), seconds in times.items()
                if split_carrier(carrier)[0] == backend
            ]
            if not points:  # there was no time for any
                continue
            alpha_s, beta_s, misfit = fit_line(points)
            fits.append(Fit(backend, alpha_s, beta_s, self.gamma_s, misfit))
        return fits

    def _crossing_s(self, seconds: float, nbytes: int) -> float:
        """The time of one message between hosts, out of that along a chain of all ranks; of any, on one host."""
        group = self.group
        within = group.size - group.num_hosts if 1 < group.num_hosts < group.size else 0
        within_s = within * typical_link(1).message_s(nbytes)
        return max(seconds - within_s, 0.1 * seconds) / max(1, group.size - 1 - within)

    def run(self, rows: Sequence[TableRow], fits: Sequence[Fit]) -> Iterator[TableRow]:
        """Measure the schedules that the model thinks well of, beside the best of the libraries' own ways.

        Successive halving: all candidates get three rounds, those that are not left behind the rest. Then crossings are
        looked for: between neighbouring sizes with different winners both are measured half-way.

        Args:
            rows: of the libraries' own ways.
            fits: links.

        Returns:
            Further rows; those of libraries that were measured again replace the earlier ones.
        """
        cells = {key: each for key, each in _best_rows(rows).items() if key[0] in OPS and key[2] >= LEAST_NBYTES}
        contenders = {
            key: list(dict.fromkeys((row.carrier, *candidates(key, self.group, fits))))
            for key, row in cells.items()
            if key[1] != "half"  # schedules round to 16 bits at every step, the libraries here do not
        }
        first = self.measure(_pairs(contenders), 3)
        survivors = {}
        for key, carriers in _measured(contenders, first).items():
            best = min(median(first[key, each]) for each in carriers)
            kept = [each for each in carriers[1:] if median(first[key, each]) <= _LEFT_BEHIND * best]
            if kept:
                survivors[key] = [carriers[0], *kept]
        second = self.measure(_pairs(survivors), self.rounds)
        found = {pair: self._row(pair, seconds) for pair, seconds in second.items()}
        winners = {key: row.carrier for key, row in cells.items()}
        for key, carriers in _measured(survivors, second).items():
            winners[key] = _fastest(key, carriers, found)
        for _ in range(_MOST_HALVINGS):
            between = dict(_crossings(winners))
            if not between:
                break
            measured = self.measure(_pairs(between), self.rounds)
            found |= {each: self._row(each, seconds) for each, seconds in measured.items()}
            for key, pair in _measured(between, measured).items():
                winners[key] = _fastest(key, pair, found)
        yield from found.values()

    def _row(self, pair: tuple[Key, str], seconds: Sequence[float]) -> TableRow:
        (op, dtypes, nbytes), carrier = pair
        backend, algorithm = split_carrier(carrier)
        return TableRow.of_samples(op, dtypes, self.group.size, nbytes, backend, False, seconds, algorithm)


def candidates(key: Key, group: Group, fits: Sequence[Fit]) -> list[str]:
    """Return the carriers of the best schedules by the model, over all backends, fastest first; none where schedules
    are not worth a try.

    Args:
        key: operation, class of types, bytes.
        group: the communicator.
        fits: links of the backends.
    """
    op, dtypes, nbytes = key
    if op not in OPS or dtypes == "half" or nbytes < LEAST_NBYTES:  # of 16 bits schedules round at every step
        return []
    predicted = sorted(
        (seconds, join_carrier(fit.backend, name))
        for fit in fits
        for name, seconds in predict_all(op, nbytes, group, fit.link)
    )
    return [carrier for seconds, carrier in predicted[:_MOST_CANDIDATES] if seconds <= _WORTH_A_TRY * predicted[0][0]]


def predict_all(op: str, nbytes: int, group: Group, link: Link) -> Iterator[tuple[str, float]]:
    """Yield every algorithm of an operation with its best parameters, and its time by the model in seconds.

    Between hosts with several ranks each the time is simulated, as links within and between differ; on one host, and
    with one rank on each, it is that of the formula.

    Args:
        op: name of the operation.
        nbytes: as in `Record.nbytes`.
        group: the communicator.
        link: between any two of the ranks, or between hosts.
    """
    seen = set()
    for algorithm, parameters in ways(op, nbytes, group, link):
        seconds = predict(algorithm, parameters, nbytes, group, link)
        if group.size == 2 and seconds in seen:  # between two ranks many algorithms are one
            continue
        seen.add(seconds)
        yield format_algorithm(algorithm.name, parameters), seconds


def predict(algorithm: Algorithm, parameters: Mapping[str, Any], nbytes: int, group: Group, link: Link) -> float:
    """Return the time of an algorithm by the model, as `predict_all` does."""
    total = total_nbytes(algorithm.collective, nbytes, group.size)
    if 1 < group.ranks_per_host < group.size:
        fabric = Hosts(typical_link(1), link, group.ranks_per_host)
        return simulate(algorithm.schedule(group.size, **parameters), total, fabric).seconds
    return algorithm.seconds(link, group.size, total, **parameters)


def ways(op: str, nbytes: int, group: Group, link: Link) -> Iterator[tuple[Algorithm, dict[str, Any]]]:
    """Yield every algorithm that can do an operation, with all its parameters, as good as they are known to be.

    Args:
        op, nbytes, group, link: as of `predict_all`.
    """
    total = total_nbytes(op, nbytes, group.size)
    for algorithm in algorithms(op):
        if algorithm.restriction(group.size) is not None:
            continue
        for parameters in _parameters_worth_a_try(algorithm, group):
            if "num_blocks" in algorithm.parameters:
                best = algorithm.best_num_blocks(link, group.size, total, **parameters)
                parameters["num_blocks"] = round_num_blocks(best)
            yield algorithm, {**algorithm.parameters, **parameters}


def _parameters_worth_a_try(algorithm: Algorithm, group: Group) -> Iterator[dict[str, Any]]:
    """Yield what is not left to the defaults, or to the best number of blocks."""
    if "ranks_per_host" not in algorithm.parameters:
        yield {}
        return
    levels = {"ranks_per_host": group.ranks_per_host, "ranks_per_domain": group.ranks_per_domain}
    if group.num_hosts == 1:  # the domains are all the levels there are
        levels = {"ranks_per_host": group.ranks_per_domain}
    elif "ranks_per_domain" not in algorithm.parameters or group.ranks_per_domain == group.ranks_per_host:
        del levels["ranks_per_domain"]
    if not 1 < levels["ranks_per_host"] < group.size:
        return
    for num_segments in _NUM_SEGMENTS if "num_segments" in algorithm.parameters else (1,):
        yield levels if num_segments == 1 else {**levels, "num_segments": num_segments}


def _measured(wanted: Mapping[Key, Sequence[str]], times: Mapping[tuple[Key, str], object]) -> dict[Key, Sequence[str]]:
    """Return what can be compared: cells of which everything was measured."""
    return {key: carriers for key, carriers in wanted.items() if all((key, each) in times for each in carriers)}


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


def _crossings(winners: Mapping[Key, str]) -> Iterator[tuple[Key, tuple[str, str]]]:
    """Half-way between neighbouring sizes with different winners: that size, and both."""
    ordered = sorted(winners)
    for key, following in pairwise(ordered):
        if key[:2] != following[:2] or winners[key] == winners[following]:
            continue
        if following[2] <= _CLOSE_ENOUGH * key[2]:
            continue
        middle = math.isqrt(key[2] * following[2]) // 4 * 4
        yield (*key[:2], middle), (winners[key], winners[following])
