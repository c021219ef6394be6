"""Schedules by the model alone, for libraries that have messages and no collectives of their own.

Such a library by itself, in a ranking or as ``backend=``, stands for what is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hocket.collectives.registry import Algorithm
from hocket.collectives.semantics import SEMANTICS
from hocket.collectives.source import format_algorithm, parse_algorithm
from hocket.comm.policy import WITH_COUNTS, Group, Policy, Range, RankedCarrier, range_of
from hocket.sim import Link
from hocket.tune.contest import predict, ways
from hocket.tune.model import link_of
from hocket.tune.policy import join_alike, ranges_as_called, timed_nbytes, with_borders

_SIZES = tuple(4**power for power in range(2, 13))  # 16 B to 16 MiB
# A schedule stays from one size to the next unless another one is so much faster: each that is named has to be built.
_LEAST_GAIN = 0.1
# Where a communicator opens the model may take a second, not a minute: of more ranks the hosts are not looked at.
_MOST_SIMULATED = 64


def best_schedules(op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
    """Return what is best up to which size, by the algorithms' formulas.

    Args:
        op: name of the operation.
        group: the communicator.
        backend: name of the library.
        policy: which may know of a link that was fitted to measurements.

    Returns:
        Ranges whose ranking is one name, as "chain(num_blocks=8)"; none where there are no schedules.
    """
    collective = WITH_COUNTS.get(op, op)
    if collective not in SEMANTICS:
        return ()
    known = replace(group, backends=())
    if group.size > _MOST_SIMULATED:
        known = replace(known, ranks_per_host=1, ranks_per_domain=1)
    # Ranks on the way of another one's block do not know its size, where sizes differ.
    is_direct = op == "all_to_allv"
    return ranges_as_called(op, group, _by_size(collective, known, _link(group, backend, policy), is_direct))


def best_candidate(op: str, nbytes: int, group: Group, backend: str, policy: Policy) -> RankedCarrier | None:
    """Return what `best_schedules` says for one size, with its time; None where there are no schedules.

    Args:
        op, group, backend, policy: as of `best_schedules`.
        nbytes: as in `Record.nbytes`.
    """
    ranges = best_schedules(op, group, backend, policy)
    if not ranges:
        return None
    (name,) = range_of(ranges, nbytes).ranking
    algorithm, parameters = parse_algorithm(WITH_COUNTS.get(op, op), name)
    seconds = predict(algorithm, parameters, timed_nbytes(op, group, nbytes), group, _link(group, backend, policy))
    return RankedCarrier(backend, seconds, "modelled", name)


def _link(group: Group, backend: str, policy: Policy) -> Link:
    fitted: Link | None = policy.fitted_link(group, backend)
    return fitted or link_of(backend, group.num_hosts)


@lru_cache(maxsize=256)
def _by_size(op: str, group: Group, link: Link, is_direct: bool) -> Sequence[Range]:
    sizes = _SIZES if op != "barrier" else (0,)
    ranges: list[Range] = []
    kept: tuple[Algorithm, dict[str, Any]] | None = None
    for nbytes, most in with_borders(sizes):
        able = (way for way in ways(op, nbytes, group, link) if not is_direct or _is_direct(way, group.size))
        seconds, way = min(((predict(*each, nbytes, group, link), each) for each in able), key=lambda pair: pair[0])
        if kept is None or predict(*kept, nbytes, group, link) > seconds * (1 + _LEAST_GAIN):
            kept = way
        ranges.append(Range(most, (format_algorithm(kept[0].name, kept[1]),)))
    return join_alike(ranges)


def _is_direct(way: tuple[Algorithm, dict[str, Any]], num_ranks: int) -> bool:
    algorithm, parameters = way
    return algorithm.schedule(num_ranks, **parameters).num_slots == 2 * num_ranks
