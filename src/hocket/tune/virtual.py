"""Times of collectives between virtual ranks, by the fastest known algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hocket.collectives.simulate import simulate
from hocket.collectives.source import format_algorithm
from hocket.comm.fabric import JobLayout
from hocket.comm.policy import WITH_COUNTS, Group, total_nbytes
from hocket.sim import Among, Fabric, Link
from hocket.tune.contest import predict_all, tuned_algorithms

_TIMED_AS = {"barrier": "all_reduce", "split": "all_gather", "dup": "all_gather"}
_FROM_ROOT = ("gather", "scatter")
_MANY_RANKS = 256
_MOST_SEGMENTS = 4  # with more than _MANY_RANKS ranks; more segments would be too many messages to simulate


class CollectiveTimes:
    """Seconds of collectives on a fabric, each computed once.

    For an operation with counts, all blocks have the mean size. gather and scatter are messages between the root and
    each other rank, one after the other.

    Args:
        fabric: network between all ranks.
        link: link of the fabric that sizes the blocks of schedules; between hosts if a host has several ranks.
        layout: hosts of the ranks.
    """

    def __init__(self, fabric: Fabric, link: Link, layout: JobLayout) -> None:
        self._fabric = fabric
        self._link = link
        self._layout = layout
        self._found: dict[tuple[int, str, int, int], float] = {}
        self._algorithms: dict[tuple[str, int, int], str] = {}

    def __call__(self, key: int, kind: str, nbytes: int, root: int, members: Sequence[int]) -> float:
        """Return the seconds of an operation.

        Args:
            key: key of the communicator.
            kind: name of the operation.
            nbytes: as in `Record.nbytes`.
            root: rank of the root, or -1.
            members: members of the communicator, as ranks of the fabric.
        """
        call = key, kind, nbytes, root
        if call not in self._found:
            self._found[call], name = self._find(kind, nbytes, root, members)
            self._algorithms[kind, nbytes, len(members)] = name
        return self._found[call]

    @property
    def algorithms(self) -> dict[tuple[str, int, int], str]:
        """The assumed algorithm of each operation, by (kind, number of bytes, number of ranks)."""
        return dict(self._algorithms)

    def _find(self, kind: str, nbytes: int, root: int, members: Sequence[int]) -> tuple[float, str]:
        size = len(members)
        if size == 1:
            return 0.0, ""
        if kind in WITH_COUNTS:
            kind, nbytes = WITH_COUNTS[kind], nbytes // size
        if kind in _FROM_ROOT:
            others = [member for member in members if member != members[root]]
            costs = [self._fabric.message_cost(members[root], member, nbytes) for member in others]
            return sum(cost.latency_s + cost.occupied_s for cost in costs), "one after the other"
        op = _TIMED_AS.get(kind, kind)
        group = Group(size, ["sim"], self._layout.num_hosts(members), self._layout.ranks_per_host(members))
        if group.ranks_per_host == 1:
            return min((seconds, name) for name, seconds in predict_all(op, nbytes, group, self._link))
        return self._simulate(op, nbytes, group, members)

    def _simulate(self, op: str, nbytes: int, group: Group, members: Sequence[int]) -> tuple[float, str]:
        """Simulate the hierarchical algorithms, and the flat one with the best formula; return the fastest.

        A flat algorithm does not distinguish hosts.
        """
        total = total_nbytes(op, nbytes, group.size)
        busy = Link(self._link.alpha_s, self._link.beta_s * group.ranks_per_host)  # all ranks of a host share it
        found = list(tuned_algorithms(op, nbytes, group, self._link))
        flat = [each for each in found if "ranks_per_host" not in each[0].parameters]
        flat.sort(key=lambda each: each[0].seconds(busy, group.size, total, **each[1]))
        most_segments = _MOST_SEGMENTS if group.size > _MANY_RANKS else math.inf
        hierarchical = [each for each in found if each not in flat and each[1].get("num_segments", 1) <= most_segments]
        fabric = Among(self._fabric, tuple(members))
        return min(
            (
                simulate(algorithm.schedule(group.size, **parameters), total, fabric).seconds,
                format_algorithm(algorithm.name, parameters),
            )
            for algorithm, parameters in (*flat[:1], *hierarchical)
        )
