"""`torch.distributed.distributed_c10d._set_pg_timeout` for groups of hocket's.

Trainers call it to shorten the timeout after the first step (torchtitan does). torch sets it for gloo's and NCCL's own
classes only, and warns otherwise; another backend has no way to be asked. So the function is wrapped, once.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def take_part_in_set_pg_timeout(kind: type[dist.ProcessGroup]) -> None:
    """Have torch's function set the timeout of groups of a class by their method `set_timeout`.

    Args:
        kind: the class; groups of all others are left to torch.
    """
    original: Any = distributed_c10d._set_pg_timeout
    if getattr(original, "_takes_part", None) is kind:
        return

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        found: Any = dist.group.WORLD if group is None else group
        if isinstance(found, kind):
            found.set_timeout(timeout)
        else:
            original(timeout, group)

    set_pg_timeout._takes_part = kind  # type: ignore[attr-defined]
    distributed_c10d._set_pg_timeout = set_pg_timeout
