"""Groups that are made of groups by themselves, rather than by `torch.distributed`: split, and merged with others."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, Store
from torch.distributed.distributed_c10d import GroupName

from hocket.errors import InvalidArgument, UnsupportedCall
from hocket.torch.opening import open_communicator

if TYPE_CHECKING:
    from hocket.torch.process_group import HocketProcessGroup

_MERGE_TIMEOUT = timedelta(minutes=30)  # torch's own
_COUNTER = "mergeGroupRank"  # torch's key: ranks of a merged group are numbered as they come


def split_group(
    group: HocketProcessGroup,
    ranks: Sequence[int],
    timeout: timedelta | None = None,
    opts: Backend.Options | None = None,
    group_name: str | None = None,
    group_desc: str | None = None,
    device_types: Sequence[torch.device] | None = None,
) -> HocketProcessGroup | None:
    """Make a group of some members, in the order of their ranks; called by all members of the group.

    Args:
        group: of which it is a part.
        ranks: of `group`, each once.
        timeout: None: that of `opts`, else that of `group`.
        opts: of which the timeout counts.
        group_name: None: one that is made of the ranks.
        group_desc: None: one that is made of that of `group`.
        device_types: those whose backends it is to have; None: all of `group`; "cpu" is one of them.

    Returns:
        The group; None on ranks that are no part of it.

    Raises:
        InvalidArgument: no rank, a rank twice or out of range, options of another kind, or devices without "cpu".
    """
    members = sorted(operator.index(rank) for rank in ranks)
    if not members or len(set(members)) != len(members):
        raise InvalidArgument(f"split_group takes ranks, each once, not {list(ranks)}")
    if members[0] < 0 or members[-1] >= group.size():
        raise InvalidArgument(f"split_group takes ranks between 0 and {group.size() - 1}, not {list(ranks)}")
    if opts is not None and not isinstance(opts, Backend.Options):
        raise InvalidArgument(f"opts must be torch's Backend.Options or None, not {opts!r}")
    kinds = None if device_types is None else {device.type for device in device_types}
    if kinds is not None and "cpu" not in kinds:
        raise InvalidArgument(
            f"a group of hocket is for cpu, and device_types has {', '.join(sorted(kinds)) or 'none'}"
        )
    name = GroupName(group_name or f"{group.group_name}:split:{members}")
    limit = timeout or (None if opts is None else opts._timeout)
    elsewhere = {
        device: each.split_group(members, limit, None, name, group_desc)
        for device, each in group._elsewhere.items()
        if kinds is None or device in kinds
    }
    if group.rank() not in members:
        return None
    made = type(group)(
        group.communicator.group(members),
        {device: each for device, each in elsewhere.items() if each is not None},
        group._timeout_s if limit is None else limit.total_seconds(),
        PrefixStore(f"{name}/", group._store) if group._store is not None else None,
    )
    return _named(made, name, group_desc or f"{group.group_desc}:split")


def merge_remote_group(
    group: HocketProcessGroup,
    store: Store,
    size: int,
    timeout: timedelta = _MERGE_TIMEOUT,
    group_name: str | None = None,
    group_desc: str | None = None,
) -> HocketProcessGroup:
    """Make a group of the members of this one and of others that know the same store.

    Args:
        group: of which this rank is a member.
        store: through which all find each other; used once. The new group has shared memory, and gloo between hosts.
        size: number of all ranks, which are numbered as they come.
        timeout: for all of them to come, and of the operations of the new group.
        group_name: None: one that is made of that of `group`.
        group_desc: None: one that is made of that of `group`.

    Raises:
        InvalidArgument: `size` is less than the size of `group`, or more ranks came than that.
        UnsupportedCall: the group has a backend for another device.
        CommTimeout: some rank never came.
    """
    if group._elsewhere:
        raise UnsupportedCall(f"a group that has another backend for {', '.join(group._elsewhere)} cannot be merged")
    if size < group.size():
        raise InvalidArgument(f"a group of {group.size()} ranks cannot become one of {size}")
    rank = store.add(_COUNTER, 1) - 1
    if rank >= size:
        raise InvalidArgument(f"this store has been used to merge {size} ranks already, and this one is one more")
    communicator = open_communicator(store, rank, size, timeout.total_seconds(), told=None, is_at_master=False)
    made = type(group)(communicator, None, timeout.total_seconds(), store)
    return _named(made, group_name or f"{group.group_name}:merge", group_desc or f"{group.group_desc}:merge")


def _named(made: HocketProcessGroup, name: str, description: str) -> HocketProcessGroup:
    made._set_group_name(GroupName(name))
    made._set_group_desc(description)
    return made
