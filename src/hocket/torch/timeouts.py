"""`torch.distributed.distributed_c10d._set_pg_timeout` for hocket's process groups.

Trainers call it to shorten the timeout after the first step (torchtitan does). torch supports the classes of gloo and
NCCL only, and warns for others; other backends cannot register for it. So the function is wrapped, once.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def wrap_set_pg_timeout(kind: type[dist.ProcessGroup]) -> None:
    """Make torch's function set the timeout of groups of a class through their method `set_timeout`.

    Args:
        kind: the class; for groups of other classes torch's function is unchanged.
    """
    original: Any = distributed_c10d._set_pg_timeout
    if getattr(original, "_wrapped_for", None) is kind:
        return

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        target: Any = dist.group.WORLD if group is None else group
        if isinstance(target, kind):
            target.set_timeout(timeout)
        else:
            original(timeout, group)

    set_pg_timeout._wrapped_for = kind  # type: ignore[attr-defined]
    distributed_c10d._set_pg_timeout = set_pg_timeout
