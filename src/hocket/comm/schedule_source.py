"""Where schedules come from, as far as a communicator is concerned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from hocket.comm.policy import Group, Policy, Range, RankedCarrier


class ScheduleTable(Protocol):
    """A schedule as far as the native core is concerned (hocket.collectives.Schedule)."""

    num_blocks: int
    num_slots: int
    ports: int
    group_size: int
    rounds: Any
    sources: Any
    destinations: Any
    blocks: Any
    source_slots: Any
    destination_slots: Any
    reduces: Any


class ScheduleSource(Protocol):
    """Where schedules come from (hocket.collectives.source.Schedules)."""

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        """Return what a call gave as `algorithm` with all its parameters: hashable, the same for the same schedule."""
        ...

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Any]:
        """Build what `complete` returned; return its name and the table."""
        ...

    def best_by_model(self, op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
        """Return the name of the best schedule over a library for each range of sizes; empty without schedules."""
        ...

    def complete_candidates(
        self, candidates: Sequence[RankedCarrier], op: str, nbytes: int, group: Group, policy: Policy
    ) -> list[RankedCarrier]:
        """Name the best schedules in candidates that are libraries without collectives of their own; each way once."""
        ...


def columns_of(table: ScheduleTable) -> dict[str, Any]:
    """Return what the native core has to know of a schedule."""
    names = ("num_blocks", "num_slots", "ports", "group_size", "rounds", "sources", "destinations", "blocks",
             "source_slots", "destination_slots", "reduces")  # fmt: skip
    return {name: cast(Any, getattr(table, name)) for name in names}
