"""Wiring of the parts: `init`, `spawn` and `simulate`."""

from hocket.session.simulator import Simulated, simulate
from hocket.session.spawner import spawn
from hocket.session.world import check_reach, connect_ranks, init

__all__ = ["Simulated", "check_reach", "connect_ranks", "init", "simulate", "spawn"]
