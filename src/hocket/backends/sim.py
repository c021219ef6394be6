"""Virtual ranks: threads of one process that run in turn, on a virtual clock (native/sim/virtual_ranks.hpp)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from hocket import _native
from hocket.backends._declaration import Tested
from hocket.backends.base import Backend, BackendJob, Lanes
from hocket.errors import BackendUnavailable

_OBSTACLE = "it carries only the ranks of hocket.simulate"


class Sim(Backend):
    """The lanes of one virtual rank.

    Args:
        ranks: all virtual ranks.
        rank: this rank.
        description: description of the fabric that connects them.
    """

    name: ClassVar[str] = "sim"
    is_optional: ClassVar[bool] = True
    is_virtual: ClassVar[bool] = True
    tested: ClassVar[Tested | None] = None  # tests/conformance/test_virtual.py

    def __init__(self, ranks: _native.VirtualRanks, rank: int, description: str) -> None:
        self._ranks = ranks
        self._rank = rank
        self._description = description

    @classmethod
    def find_obstacle(cls) -> str | None:
        return _OBSTACLE

    @classmethod
    def start(cls, job: BackendJob) -> Backend:
        raise BackendUnavailable(_OBSTACLE)

    @property
    def description(self) -> str:
        return self._description

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        return Lanes(*self._ranks.open_lanes(key, list(members), members.index(self._rank)))

    def close_lanes(self, key: int) -> None:
        pass  # the lanes notify the other ranks themselves

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        return "virtual ranks cannot continue without one of them"


ADAPTER = Sim
