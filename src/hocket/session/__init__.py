"""Wiring of the parts: `init`, `spawn` and `simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.session.simulator import Simulated, simulate
    from hocket.session.spawner import spawn
    from hocket.session.world import check_reach, connect_ranks, init

__all__ = ["Simulated", "check_reach", "connect_ranks", "init", "simulate", "spawn"]

__getattr__ = lazy(__name__)
