"""What a communicator needs of the source of its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from hocket.comm.policy import Group, Policy, Range, RankedCarrier


class ScheduleTable(Protocol):
    """The part of a schedule that the native core needs (hocket.collectives.Schedule)."""

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
    """The source of schedules (hocket.collectives.source.Schedules)."""

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        """Return the `algorithm` of a call with all its parameters: hashable, and equal for the same schedule."""
        ...

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Any]:
        """Build a schedule from the value that `complete` returned; return its name and the table."""
        ...

    def best_by_model(self, op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
        """Return the best schedule over a library for each range of sizes; empty if no schedule exists."""
        ...

    def complete_candidates(
        self, candidates: Sequence[RankedCarrier], op: str, nbytes: int, group: Group, policy: Policy
    ) -> list[RankedCarrier]:
        """Add the best schedule to each candidate that is a library without collectives; remove duplicates."""
        ...


def columns_of(table: ScheduleTable) -> dict[str, Any]:
    """Return the columns of a schedule that the native core needs."""
    names = ("num_blocks", "num_slots", "ports", "group_size", "rounds", "sources", "destinations", "blocks",
             "source_slots", "destination_slots", "reduces")  # fmt: skip
    return {name: cast(Any, getattr(table, name)) for name in names}
