"""How torch makes a process group of hocket's."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from hocket.errors import InvalidArgument
from hocket.torch.builtin_hooks import take_part_in_builtin_hooks
from hocket.torch.devices import make_groups, wanted_elsewhere
from hocket.torch.opening import open_communicator
from hocket.torch.options import Options
from hocket.torch.process_group import HocketProcessGroup
from hocket.torch.timeouts import take_part_in_set_pg_timeout


def create_process_group(options: Any, backend_options: Any) -> HocketProcessGroup:
    """Make the process group that ``init_process_group("hocket")`` and ``new_group`` ask for.

    Args:
        options: torch's _DistributedBackendOptions: store, group_rank, group_size, timeout, group_id,
            global_ranks_in_group.
        backend_options: `Options`, of the first group, or those of NCCL where it has another device, or None.
    """
    take_part_in_set_pg_timeout(HocketProcessGroup)
    take_part_in_builtin_hooks(HocketProcessGroup)
    timeout_s = options.timeout.total_seconds()
    elsewhere = wanted_elsewhere()
    of_others = None if isinstance(backend_options, Options) else backend_options
    if of_others is not None:
        if "nccl" not in elsewhere.values():
            raise InvalidArgument(f"pg_options of the hocket backend must be hocket.torch.Options, not {of_others!r}")
        backend_options = None
    world = dist.group.WORLD
    if isinstance(world, HocketProcessGroup) and not world.communicator._closed:
        if backend_options is not None:
            raise InvalidArgument("a group made from another one has its libraries; pg_options belong to the first one")
        groups = make_groups(elsewhere, options, of_others)
        members = world.communicator.group(options.global_ranks_in_group)
        return HocketProcessGroup(members, groups, timeout_s, options.store)
    told = backend_options or (Options(None) if os.environ.get("HOCKET_BACKENDS") else None)
    # An agreement of a part of the ranks is led by one that need not be where MASTER_ADDR is.
    leader = (options.global_ranks_in_group or [0])[0]
    communicator = open_communicator(
        *(options.store, options.group_rank, options.group_size, timeout_s), told=told, is_at_master=leader == 0
    )
    return HocketProcessGroup(communicator, make_groups(elsewhere, options, of_others), timeout_s, options.store)
