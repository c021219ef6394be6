"""Creation of hocket's process groups, as torch calls it."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from hocket.errors import InvalidArgument
from hocket.torch.builtin_hooks import replace_builtin_hooks
from hocket.torch.devices import backends_of_other_devices, make_groups
from hocket.torch.opening import open_communicator
from hocket.torch.options import Options
from hocket.torch.process_group import HocketProcessGroup
from hocket.torch.timeouts import wrap_set_pg_timeout


def create_process_group(options: Any, backend_options: Any) -> HocketProcessGroup:
    """Make the process group of a call of ``init_process_group("hocket")`` or ``new_group``.

    Args:
        options: torch's _DistributedBackendOptions: store, group_rank, group_size, timeout, group_id,
            global_ranks_in_group.
        backend_options: `Options` of the first group, or options of NCCL for another device, or None.

    Raises:
        InvalidArgument: `backend_options` has another type, or is given for a further group.
    """
    wrap_set_pg_timeout(HocketProcessGroup)
    replace_builtin_hooks(HocketProcessGroup)
    timeout_s = options.timeout.total_seconds()
    other_backends = backends_of_other_devices()
    nccl_options = None if isinstance(backend_options, Options) else backend_options
    if nccl_options is not None:
        if "nccl" not in other_backends.values():
            raise InvalidArgument(
                f"pg_options of the hocket backend must be hocket.torch.Options, not {nccl_options!r}"
            )
        backend_options = None
    world = dist.group.WORLD
    if isinstance(world, HocketProcessGroup) and not world.communicator._closed:
        if backend_options is not None:
            raise InvalidArgument("pg_options must be given to the first group only; further groups use its libraries")
        groups = make_groups(other_backends, options, nccl_options)
        members = world.communicator.group(options.global_ranks_in_group)
        return HocketProcessGroup(members, groups, timeout_s, options.store)
    chosen = backend_options or (Options(None) if os.environ.get("HOCKET_BACKENDS") else None)
    # The first rank of a group of some ranks need not be on the host of MASTER_ADDR.
    leader = (options.global_ranks_in_group or [0])[0]
    communicator = open_communicator(
        *(options.store, options.group_rank, options.group_size, timeout_s), chosen=chosen, is_at_master=leader == 0
    )
    groups = make_groups(other_backends, options, nccl_options)
    return HocketProcessGroup(communicator, groups, timeout_s, options.store)
