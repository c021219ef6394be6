"""Schedules that the model chooses, for libraries that have messages but no collectives.

The name of such a library alone, in a ranking or as ``backend=``, stands for the schedule that is chosen here.
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
from hocket.tune.contest import predict, tuned_algorithms
from hocket.tune.model import link_of
from hocket.tune.policy import merge_equal_ranges, ranges_as_called, timed_nbytes, with_borders

_SIZES = tuple(4**power for power in range(2, 13))  # 16 B to 16 MiB
# The next size keeps the schedule unless another one is faster by this share, since every named schedule must be built.
_LEAST_GAIN = 0.1
# When a communicator opens, the model may take a second, not a minute. For more ranks, hosts are therefore ignored.
_MOST_SIMULATED = 64


def best_schedules(op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
    """Return the best schedule for each range of sizes, by the algorithms' formulas.

    Args:
        op: name of the operation.
        group: the communicator.
        backend: name of the library.
        policy: the policy; if it has a link that was fitted to measurements, that link is used.

    Returns:
        Ranges whose ranking is one name, such as "chain(num_blocks=8)"; empty if the operation has no schedules.
    """
    collective = WITH_COUNTS.get(op, op)
    if collective not in SEMANTICS:
        return ()
    key_group = replace(group, backends=())
    if group.size > _MOST_SIMULATED:
        key_group = replace(key_group, ranks_per_host=1, ranks_per_domain=1)
    # If sizes differ, a rank that forwards a block does not know its size, so blocks must be sent directly.
    is_direct = op == "all_to_allv"
    return ranges_as_called(op, group, _best_by_size(collective, key_group, _link(group, backend, policy), is_direct))


def best_candidate(op: str, nbytes: int, group: Group, backend: str, policy: Policy) -> RankedCarrier | None:
    """Return the choice of `best_schedules` for one size, with its time; None if the operation has no schedules.

    Args:
        op, group, backend, policy: as for `best_schedules`.
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
def _best_by_size(op: str, group: Group, link: Link, is_direct: bool) -> Sequence[Range]:
    sizes = _SIZES if op != "barrier" else (0,)
    ranges: list[Range] = []
    kept: tuple[Algorithm, dict[str, Any]] | None = None
    for nbytes, most in with_borders(sizes):
        usable = (
            each for each in tuned_algorithms(op, nbytes, group, link) if not is_direct or _is_direct(each, group.size)
        )
        seconds, best = min(((predict(*each, nbytes, group, link), each) for each in usable), key=lambda pair: pair[0])
        if kept is None or predict(*kept, nbytes, group, link) > seconds * (1 + _LEAST_GAIN):
            kept = best
        ranges.append(Range(most, (format_algorithm(kept[0].name, kept[1]),)))
    return merge_equal_ranges(ranges)


def _is_direct(tuned: tuple[Algorithm, dict[str, Any]], num_ranks: int) -> bool:
    """Return whether a schedule forwards no blocks: it has slots only for blocks that are sent or received."""
    algorithm, parameters = tuned
    return algorithm.schedule(num_ranks, **parameters).num_slots == 2 * num_ranks
