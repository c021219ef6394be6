"""The model that decides without measurements: a latency and a bandwidth per backend.

An operation takes rounds x latency + traffic / bandwidth. Rounds and traffic are those of the usual algorithm (Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). The constants come from
one machine with two cores. They only order the backends: shared memory before MPI before UCX before gloo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType

from hocket.backends import LinkSpec, declarations
from hocket.comm.policy import CHOOSABLE, LARGEST_NBYTES, WITH_COUNTS, Choices, Group, Policy, Range, RankedCarrier

from hocket import _native, sim  # isort: skip


KINDS = tuple((op, dtypes) for op in CHOOSABLE for dtypes in _native.DTYPE_CLASS_NAMES)
"""All pairs (operation, class of types) that a policy chooses for."""
_TYPICAL, _TYPICAL_BETWEEN_HOSTS = LinkSpec(1e-6, 5.0), LinkSpec(50e-6, 1.0)  # for any backend
_UNKNOWN = LinkSpec(1e-3, 0.1)


@cache
def links_for(num_hosts: int) -> Mapping[str, LinkSpec]:
    """Return the links that backends declare for ranks on `num_hosts` hosts, by name; the lowest latency first."""
    declared = {name: each.link_for(num_hosts) for name, each in declarations().items()}
    known = {name: link for name, link in declared.items() if link is not None}
    return MappingProxyType(dict(sorted(known.items(), key=lambda each: each[1].latency_s)))


def typical_link(num_hosts: int) -> sim.Link:
    """Return the link to size the blocks of schedules and to compare schedules, if no link was fitted."""
    return _simulated(_TYPICAL if num_hosts == 1 else _TYPICAL_BETWEEN_HOSTS)


def link_of(backend: str, num_hosts: int) -> sim.Link:
    """Return the link to compare schedules over a backend, if no link was fitted to it."""
    return _simulated(links_for(num_hosts).get(backend, _UNKNOWN))


def _simulated(link: LinkSpec) -> sim.Link:
    return sim.Link(link.latency_s, 1e-9 / link.bandwidth_gb_s)


# By operation: number of ranks -> (rounds, traffic in units of Record.nbytes).
_COSTS: dict[str, Callable[[int], tuple[float, float]]] = {
    "barrier": lambda n: (math.log2(n), 0.0),
    **dict.fromkeys(("all_reduce", "reduce", "broadcast"), lambda n: (2 * math.log2(n), 2 * (n - 1) / n)),
    "scan": lambda n: (math.log2(n), math.log2(n)),
    **dict.fromkeys(("all_gather", "reduce_scatter", "gather", "scatter"), lambda n: (math.log2(n), n - 1)),
    "all_to_all": lambda n: (n - 1, n - 1),
    **dict.fromkeys(("send", "recv"), lambda n: (1.0, 1.0)),
}


def predict_seconds(backend: str, op: str, group: Group, nbytes: int) -> float:
    """Return the modelled time of an operation in seconds."""
    link = links_for(group.num_hosts).get(backend, _UNKNOWN)
    if op in WITH_COUNTS:
        op, nbytes = WITH_COUNTS[op], nbytes // group.size
    rounds, traffic = _COSTS[op](max(2, group.size))
    return rounds * link.latency_s + traffic * nbytes / (link.bandwidth_gb_s * 1e9)


def rank_by_model(group: Group, op: str, nbytes: int) -> list[RankedCarrier]:
    """Return the backends from best to worst."""
    candidates = [RankedCarrier(name, predict_seconds(name, op, group, nbytes), "modelled") for name in group.backends]
    return sorted(candidates, key=lambda each: each.seconds or math.inf)


def in_order(names: Iterable[str]) -> list[Range]:
    """Return one range with this ranking for all sizes."""
    return [Range(LARGEST_NBYTES, tuple(names))]


class ModelPolicy(Policy):
    """A policy that chooses by the model.

    Args:
        reason: why no table is used, for explanations.

    Examples:
        >>> with hk.init(backends=["shm"], policy=hk.tune.ModelPolicy()) as comm:
        ...     comm.explain("all_reduce", 1024).reason
        'a model decides, as no table was measured here'
    """

    def __init__(self, reason: str = "no table was measured here") -> None:
        self.reason = reason

    def identity(self, group: Group) -> dict[str, str]:
        return {**super().identity(group), "reason": self.reason}

    def choices(self, group: Group) -> Choices:
        # Latency and bandwidth give the same order of the backends, so one size stands for all.
        return {kind: in_order(each.backend for each in rank_by_model(group, kind[0], 1)) for kind in KINDS}

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        return f"a model decides, as {self.reason}", rank_by_model(group, op, nbytes)
