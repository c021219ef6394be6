"""Process groups with another backend for another device, as in ``init_process_group("cpu:hocket,cuda:nccl")``.

torch uses a process group written in Python for all devices, and ignores the other backends of the request. So hocket's
group makes these backends itself, and passes on to them the operations on their devices.
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

_MAKER = "_new_process_group_helper"  # torch's function with the request, which it does not pass to a backend
_DEPTH = 6  # frames up to that function
_OPERATIONS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "_allgather_base", "all_gather_single", "allgather",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall_base", "all_to_all_single", "alltoall", "send", "recv",
    "recv_anysource", "recv_any_source", "barrier", "_start_coalescing", "_end_coalescing", "supports_tensor_alloc",
)  # fmt: skip

_Group = TypeVar("_Group", bound=type)


def backends_of_other_devices() -> dict[str, str]:
    """Return the backends other than "hocket", by device, in the request for the group that is being made."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame.f_code.co_name == _MAKER and "backend_config" in frame.f_locals:
            requested: Mapping[str, str] = frame.f_locals["backend_config"].get_device_backend_map()
            return {device: str(name) for device, name in requested.items() if str(name) != "hocket"}
        if frame.f_back is None:
            break
        frame = frame.f_back
    return {}


def make_groups(backends: Mapping[str, str], options: Any, backend_options: Any) -> dict[str, dist.ProcessGroup]:
    """Make one of torch's own process groups for each device, with the device's backend.

    Args:
        backends: names of backends, by device.
        options: torch's _DistributedBackendOptions.
        backend_options: options of NCCL, or None.

    Raises:
        InvalidArgument: a backend cannot be used beside hocket.
        BackendUnavailable: this build of torch has no NCCL.
    """
    groups = {}
    for device, name in backends.items():
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
    rank_and_size = options.group_rank, options.group_size
    backend: Any
    if plugin is not None:
        if not plugin.extended_api:
            backend = plugin.creator_fn(store, *rank_and_size, options.timeout)
        else:
            own = _DistributedBackendOptions()
            for each in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"):
                setattr(own, each, getattr(options, each))
            own.store = store
            backend = plugin.creator_fn(own, backend_options)
    elif name == "nccl":
        if not dist.is_nccl_available():
            raise BackendUnavailable(f"'{device}:nccl' was requested, and this build of torch has no NCCL")
        nccl = backend_options or dist.ProcessGroupNCCL.Options()
        nccl._timeout = options.timeout
        nccl.global_ranks_in_group, nccl.group_name = options.global_ranks_in_group, options.group_id
        backend = dist.ProcessGroupNCCL(store, *rank_and_size, nccl)
        backend._set_sequence_number_for_group()
    else:
        raise InvalidArgument(f"the backend of {device} beside hocket must be nccl or a registered one, not {name!r}")
    if not isinstance(backend, Backend):
        raise InvalidArgument(f"the backend of {device} beside hocket must be a C++ backend, which {name!r} is not")
    return backend


def dispatched_by_device(group: _Group) -> _Group:
    """Make the operations of a class of groups call `_elsewhere[device]` for tensors on such a device."""
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
    """Return the type of the first device that the arguments name, or that a tensor among them is on."""
    for each in arguments:
        if isinstance(each, torch.Tensor):
            return each.device.type
        if isinstance(each, torch.device):
            return each.type
        if isinstance(each, (list, tuple)) and (device := _device_of(each)) is not None:
            return device
        if isinstance(each, dist.BarrierOptions) and each.device is not None:
            return each.device.type
    return None
