"""The registry of collective algorithms, for communicators; loaded when the first call or table names one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from hocket.comm.policy import Group
from hocket.tune.model import typical_link

if TYPE_CHECKING:
    from hocket.collectives.source import Schedules


class LazySchedules:
    """`hocket.collectives.source.Schedules`, which needs NumPy."""

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        return self._schedules.complete(collective, algorithm, group, nbytes)

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Any]:
        return self._schedules.build(collective, algorithm, num_ranks)

    @cached_property
    def _schedules(self) -> Schedules:
        from hocket.collectives.source import Schedules

        return Schedules(typical_link)
