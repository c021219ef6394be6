"""Where the parts are wired together: `init` and `spawn`."""

from hocket.session.spawner import spawn
from hocket.session.world import check_reach, connect_ranks, init

__all__ = ["check_reach", "connect_ranks", "init", "spawn"]
