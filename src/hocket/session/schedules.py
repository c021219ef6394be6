"""Collective algorithms, sparse and compressed sums for communicators; loaded when a call or table first needs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hocket.backends import has_collectives
from hocket.comm.policy import Group, Policy, Range, RankedCarrier
from hocket.tune.model import typical_link

if TYPE_CHECKING:
    from hocket.collectives.compressed.sums import CompressedSums
    from hocket.collectives.source import Schedules
    from hocket.collectives.sparse.sums import SparseSums
    from hocket.comm import Communicator


def open_sparse_sums(comm: Communicator) -> SparseSums:
    """Make what carries the sparse sums of a communicator out; called by all ranks."""
    from hocket.collectives.sparse.sums import SparseSums

    return SparseSums(comm)


def open_compressed_sums(comm: Communicator) -> CompressedSums:
    """Make what carries the compressed sums of a communicator out; called by all ranks."""
    from hocket.collectives.compressed.sums import CompressedSums

    return CompressedSums(comm)


class LazySchedules:
    """`hocket.collectives.source.Schedules`, imported on first use because it needs NumPy."""

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        return self._schedules.complete(collective, algorithm, group, nbytes)

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Any]:
        return self._schedules.build(collective, algorithm, num_ranks)

    def best_by_model(self, op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
        from hocket.tune.by_model import best_schedules

        return best_schedules(op, group, backend, policy)

    def complete_candidates(
        self, candidates: Sequence[RankedCarrier], op: str, nbytes: int, group: Group, policy: Policy
    ) -> list[RankedCarrier]:
        completed: dict[str, RankedCarrier] = {}
        for candidate in candidates:
            each = candidate
            if not each.algorithm and not has_collectives(each.backend):
                from hocket.tune.by_model import best_candidate

                each = best_candidate(op, nbytes, group, each.backend, policy) or each
            completed.setdefault(each.carrier, each)  # measured candidates come before modelled ones
        return list(completed.values())

    @cached_property
    def _schedules(self) -> Schedules:
        from hocket.collectives.source import Schedules

        return Schedules(typical_link)
