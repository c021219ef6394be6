"""Groups that have another backend for another device, as in ``init_process_group("cpu:hocket,cuda:nccl")``.

torch takes a process group that is written in Python as the whole group, for all devices, and drops the rest of what
was asked for. So the group makes the backends of the others itself, and hands them what is on their devices.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, _DistributedBackendOptions

from hocket.errors import BackendUnavailable, InvalidArgument

_MAKER = "_new_process_group_helper"  # of torch's; what it was asked for it tells no backend
_DEPTH = 6
_OPERATIONS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "_allgather_base", "all_gather_single", "allgather",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall_base", "all_to_all_single", "alltoall", "send", "recv",
    "recv_anysource", "recv_any_source", "barrier", "_start_coalescing", "_end_coalescing", "supports_tensor_alloc",
)  # fmt: skip

_Group = TypeVar("_Group", bound=type)


def wanted_elsewhere() -> dict[str, str]:
    """Return the backends, by device, that the group being made is to have besides "hocket"."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame.f_code.co_name == _MAKER and "backend_config" in frame.f_locals:
            found: Mapping[str, str] = frame.f_locals["backend_config"].get_device_backend_map()
            return {device: str(name) for device, name in found.items() if str(name) != "hocket"}
        if frame.f_back is None:
            break
        frame = frame.f_back
    return {}


def make_groups(wanted: Mapping[str, str], options: Any, backend_options: Any) -> dict[str, dist.ProcessGroup]:
    """Make a group of torch's own for each device, with its backend.

    Args:
        wanted: names by device.
        options: torch's _DistributedBackendOptions.
        backend_options: those of NCCL, or None.

    Raises:
        InvalidArgument: one of torch's own that is not for another device than "cpu".
        BackendUnavailable: this build of torch has no NCCL.
    """
    groups = {}
    for device, name in wanted.items():
        backend = _make(device, name, options, backend_options)
        kind = getattr(dist.ProcessGroup.BackendType, name.upper(), dist.ProcessGroup.BackendType.CUSTOM)
        group = dist.ProcessGroup(
            PrefixStore(f"hocket {device}/", options.store), options.group_rank, options.group_size
        )
        group._set_default_backend(kind)
        group._register_backend(torch.device(device), kind, backend)
        group._set_group_name(options.group_id)
        group._set_group_desc(f"{device} of a hocket group")
        groups[device] = group
    return groups


def _make(device: str, name: str, options: Any, backend_options: Any) -> Backend:
    plugin = dist.Backend._plugins.get(name.upper())
    store = PrefixStore(f"hocket {device}/", options.store)
    place = options.group_rank, options.group_size
    made: Any
    if plugin is not None:
        if not plugin.extended_api:
            made = plugin.creator_fn(store, *place, options.timeout)
        else:
            own = _DistributedBackendOptions()
            for each in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"):
                setattr(own, each, getattr(options, each))
            own.store = store
            made = plugin.creator_fn(own, backend_options)
    elif name == "nccl":
        if not dist.is_nccl_available():
            raise BackendUnavailable(f"'{device}:nccl' was asked for, and this build of torch has no NCCL")
        nccl = backend_options or dist.ProcessGroupNCCL.Options()
        nccl._timeout = options.timeout
        nccl.global_ranks_in_group, nccl.group_name = options.global_ranks_in_group, options.group_id
        made = dist.ProcessGroupNCCL(store, *place, nccl)
        made._set_sequence_number_for_group()
    else:
        raise InvalidArgument(f"beside hocket, {device} can have nccl or a registered backend, not {name!r}")
    if not isinstance(made, Backend):
        raise InvalidArgument(f"beside hocket, {device} cannot have {name!r}, which is a group of its own")
    return made


def dispatched_by_device(group: _Group) -> _Group:
    """Have the operations of a class of groups done by `_elsewhere[device]` where tensors are on such a device."""
    for name in _OPERATIONS:
        setattr(group, name, _dispatched(name, getattr(group, name)))
    return group


def _dispatched(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        if self._elsewhere:
            device = _device_of([*args, *options.values()])
            if device in self._elsewhere:
                return getattr(self._elsewhere[device], name)(*args, **options)
        return own(self, *args, **options)

    return method


def _device_of(arguments: Sequence[Any]) -> str | None:
    """The device of the first tensor among the arguments, or that they name."""
    for each in arguments:
        if isinstance(each, torch.Tensor):
            return each.device.type
        if isinstance(each, torch.device):
            return each.type
        if isinstance(each, (list, tuple)) and (found := _device_of(each)) is not None:
            return found
        if isinstance(each, dist.BarrierOptions) and each.device is not None:
            return each.device.type
    return None
