"""`ProcessGroup.split_group` and `merge_remote_group`: groups made from existing groups."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroup, Store
from torch.distributed.distributed_c10d import GroupName

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, UnsupportedCall
from hocket.torch.opening import open_communicator

_MERGE_TIMEOUT = timedelta(minutes=30)  # torch's default
_COUNTER = "mergeGroupRank"  # torch's key; ranks of a merged group are numbered in the order of their calls


class Regroupable(Protocol):
    """The members of a process group that this file uses."""

    communicator: Communicator
    _elsewhere: dict[str, ProcessGroup]
    _timeout_s: float | None
    _store: Store | None

    def __init__(
        self,
        communicator: Communicator,
        elsewhere: Mapping[str, ProcessGroup] | None,
        timeout_s: float | None,
        store: Store | None,
        /,
    ) -> None: ...

    @property
    def group_name(self) -> str: ...
    @property
    def group_desc(self) -> str: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def _set_group_name(self, name: GroupName) -> None: ...
    def _set_group_desc(self, description: str) -> None: ...


Group = TypeVar("Group", bound=Regroupable)


def split_group(
    group: Group,
    ranks: Sequence[int],
    timeout: timedelta | None = None,
    opts: Backend.Options | None = None,
    group_name: str | None = None,
    group_desc: str | None = None,
    device_types: Sequence[torch.device] | None = None,
) -> Group | None:
    """Make a group of some members, in the order of their ranks; called by all members of the group.

    Args:
        group: the parent group.
        ranks: ranks of `group`, each at most once.
        timeout: default timeout of the new group's operations. None: that of `opts`, else that of `group`.
        opts: only the timeout in them is used.
        group_name: None: derived from the parent's name and the ranks.
        group_desc: None: derived from the parent's description.
        device_types: devices whose backends the new group keeps; must include "cpu". None: all devices of `group`.

    Returns:
        The new group, or None on ranks that are not members of it.

    Raises:
        InvalidArgument: `ranks` is empty, repeats a rank or has one out of range; `opts` has the wrong type;
            `device_types` lacks "cpu".
    """
    members = sorted(operator.index(rank) for rank in ranks)
    if not members or len(set(members)) != len(members):
        raise InvalidArgument(f"ranks of split_group must be 1 or more ranks, each once, not {list(ranks)}")
    if members[0] < 0 or members[-1] >= group.size():
        raise InvalidArgument(f"ranks of split_group must be between 0 and {group.size() - 1}, not {list(ranks)}")
    if opts is not None and not isinstance(opts, Backend.Options):
        raise InvalidArgument(f"opts must be torch's Backend.Options or None, not {opts!r}")
    kinds = None if device_types is None else {device.type for device in device_types}
    if kinds is not None and "cpu" not in kinds:
        raise InvalidArgument(
            f"device_types must include cpu for a hocket group; it has {', '.join(sorted(kinds)) or 'none'}"
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
    group: Group,
    store: Store,
    size: int,
    timeout: timedelta = _MERGE_TIMEOUT,
    group_name: str | None = None,
    group_desc: str | None = None,
) -> Group:
    """Make a group of the members of this group and of other ranks with the same store.

    Args:
        group: the group that this rank brings along.
        store: a store that all ranks share; it can be used for one merge only.
        size: total number of ranks. They are numbered in the order in which they call.
        timeout: for all ranks to arrive, and the default timeout of the new group's operations.
        group_name: None: derived from the name of `group`.
        group_desc: None: derived from the description of `group`.

    Returns:
        The merged group. It uses shared memory, and gloo between hosts.

    Raises:
        InvalidArgument: `size` is smaller than `group`, or more than `size` ranks called.
        UnsupportedCall: `group` has a backend for another device.
        CommTimeout: some rank never called.
    """
    if group._elsewhere:
        raise UnsupportedCall(f"a group with another backend for {', '.join(group._elsewhere)} cannot be merged")
    if size < group.size():
        raise InvalidArgument(f"size must be {group.size()}, the size of the group, or more, not {size}")
    rank = store.add(_COUNTER, 1) - 1
    if rank >= size:
        raise InvalidArgument(
            f"more than {size} ranks called merge_remote_group with this store; use a new store for each merge"
        )
    communicator = open_communicator(store, rank, size, timeout.total_seconds(), chosen=None, is_at_master=False)
    made = type(group)(communicator, None, timeout.total_seconds(), store)
    return _named(made, group_name or f"{group.group_name}:merge", group_desc or f"{group.group_desc}:merge")


def _named(made: Group, name: str, description: str) -> Group:
    made._set_group_name(GroupName(name))
    made._set_group_desc(description)
    return made
