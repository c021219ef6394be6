"""Call the members of a process group of the backend argv[1], and of its backend, that are not operations; print the
results.

"unnamed" lists the members of torch's classes that no table here names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import call_forms
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroup

CPU = torch.device("cpu")
OPERATIONS = {name for name, _ in call_forms.forms()}
IN_TIME = timedelta(seconds=30)
# members of Python and pybind11; constants; methods that torch calls while it makes a group
NO_CALLS = {
    "BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "Options", "UCC", "UNDEFINED", "XCCL", "_backend_id", "_id",
    "_pybind11_conduit_v1_", "_register_backend", "_set_default_backend", "boxed", "name", "unbox",
}  # fmt: skip


def sum_of(group: ProcessGroup | None) -> list[float] | None:
    if group is None:
        return None
    x = torch.full((2,), 1.0 + group.rank())
    group.allreduce([x]).wait()
    return x.tolist()


def split(ranks: list[int], **options: Any) -> Callable[[ProcessGroup], Any]:
    return lambda group: sum_of(group.split_group(ranks, timeout=IN_TIME, **options))


def named(group: ProcessGroup) -> list[Any]:
    made = group.split_group([1, 0], group_name="both", group_desc="two")
    return [made.rank() == group.rank(), made.size(), made.group_name, made.group_desc, made.name()]


def merged(group: ProcessGroup) -> list[Any]:
    """Merge the groups of all ranks, each of which has one rank."""
    alone = group.split_group([0]), group.split_group([1])
    store = dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    made = next(each for each in alone if each is not None).merge_remote_group(store, 2, IN_TIME, "again", "all")
    return [made.size(), made.group_name, made.group_desc, sum_of(made)]


def late(group: ProcessGroup) -> None:
    group.merge_remote_group(dist.HashStore(), 3, timedelta(seconds=0.1))


def from_any(group: ProcessGroup) -> list[float]:
    x = torch.full((2,), 1.0 + group.rank())
    if group.rank() == 1:
        group.send([x], 0, 7).wait()
        return [2.0, 2.0, 1]
    work = group.recv_anysource([x], 7)
    work.wait()
    return [*x.tolist(), work._source_rank()]


def gather_coalesced(group: ProcessGroup) -> list[Any]:
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(2)]
    group.allgather_coalesced(lists, [torch.full((size,), 1.0 + group.rank()) for size in (2, 3)]).wait()
    return [[each.tolist() for each in outputs] for outputs in lists]


def into_tensors(name: str) -> Callable[[ProcessGroup], Any]:
    def call(group: ProcessGroup) -> list[Any]:
        outputs, inputs = [torch.zeros(4), torch.zeros(6)], [torch.full((n,), 1.0 + group.rank()) for n in (2, 3)]
        getattr(group, name)(outputs, inputs).wait()
        return [each.tolist() for each in outputs]

    return call


def parts_of_sums(name: str) -> Callable[[ProcessGroup], Any]:
    def call(group: ProcessGroup) -> list[Any]:
        outputs = [torch.zeros(2), torch.zeros(3)]
        getattr(group, name)(outputs, [torch.arange(n) + 1.0 + group.rank() for n in (4, 6)]).wait()
        return [each.tolist() for each in outputs]

    return call


def used_store(group: ProcessGroup) -> str:
    store: Any = group.get_group_store()
    store.set("a key", "its value")
    return str(store.get("a key"))


def set_attribute(group: ProcessGroup) -> list[bool]:
    before = group.use_pg_for_symm_mem_rendezvous
    group.use_pg_for_symm_mem_rendezvous = True
    return [before, group.use_pg_for_symm_mem_rendezvous]


def between(group: ProcessGroup) -> list[float]:
    """Run coalesced operations."""
    group._start_coalescing(CPU)
    xs = [torch.full((2,), each + group.rank()) for each in (1.0, 10.0)]
    for x in xs:
        group.allreduce([x])
    group._end_coalescing(CPU).wait()
    return [x[0].item() for x in xs]


CALLS: dict[str, Callable[[Any], Any]] = {
    "_start_coalescing, _end_coalescing": between,
    "_register_on_completion_hook": lambda group: group._register_on_completion_hook(print),
    "_wait_for_pending_works": lambda group: group._wait_for_pending_works(),
    "_device_types": lambda group: CPU in group._device_types,
    "_enable_collectives_timing": lambda group: group._enable_collectives_timing(),
    "_get_backend": lambda group: group._get_backend(CPU).size(),
    "_get_backend_name": lambda group: isinstance(group._get_backend_name(), str),
    "_get_sequence_number_for_group": lambda group: type(group._get_sequence_number_for_group()).__name__,
    "_has_hooks": lambda group: group._has_hooks(),
    "_set_group_desc": lambda group: [group._set_group_desc("a description"), group.group_desc],
    "_set_group_name": lambda group: [group._set_group_name("a name"), group.group_name],
    "_set_sequence_number_for_group": lambda group: group._set_sequence_number_for_group(),
    "all_gather_single_coalesced": into_tensors("all_gather_single_coalesced"),
    "allgather_coalesced": gather_coalesced,
    "allgather_into_tensor_coalesced": into_tensors("allgather_into_tensor_coalesced"),
    "bound_device_id": lambda group: group.bound_device_id,
    "get_group_store": used_store,
    "group_desc": lambda group: type(group.group_desc).__name__,
    "group_name": lambda group: type(group.group_name).__name__,
    "monitored_barrier": lambda group: group.monitored_barrier(IN_TIME),
    "rank": lambda group: group.rank(),
    "recv_anysource": from_any,
    "reduce_scatter_single_coalesced": parts_of_sums("reduce_scatter_single_coalesced"),
    "reduce_scatter_tensor_coalesced": parts_of_sums("reduce_scatter_tensor_coalesced"),
    "set_timeout": lambda group: group.set_timeout(IN_TIME),
    "size": lambda group: group.size(),
    "use_pg_for_symm_mem_rendezvous": set_attribute,
}
# For hocket only: one time in eight, these calls hang over gloo, or the end of the program does after them.
OF_HOCKET: dict[str, Callable[[Any], Any]] = {
    "abort": lambda group: group.split_group([0, 1]).abort(),
    "merge_remote_group": merged,
    "merge_remote_group, too few": late,
    "split_group": split([0, 1]),
    "split_group, again": split([0, 1]),
    "split_group, names": named,
    "split_group, one": split([1]),
    "split_group, nobody": split([]),
    "split_group, twice": split([0, 0]),
    "split_group, too many": split([0, 1, 2]),
    "shutdown": lambda group: group.split_group([0, 1]).shutdown(),
}
OF_BACKEND: dict[str, Callable[[Any], Any]] = {
    "allocate_tensor": lambda backend: backend.allocate_tensor(3, dtype=torch.float64, device=CPU).shape[0],
    "eager_connect_single_device": lambda backend: backend.eager_connect_single_device(CPU),
    "mem_allocator": lambda backend: backend.mem_allocator,
    "memory_stats": lambda backend: backend.memory_stats(),
    "options": lambda backend: backend.options._timeout.total_seconds(),
    "resume": lambda backend: backend.resume(),
    "setUsePgForSymmMemRendezvous": lambda backend: backend.setUsePgForSymmMemRendezvous(False),
    "shrink": lambda backend: backend.shrink([1]),
    "supports_coalescing": lambda backend: backend.supports_coalescing,
    "supports_shrinking": lambda backend: backend.supports_shrinking,
    "supports_splitting": lambda backend: backend.supports_splitting,
    "supports_tensor_alloc": lambda backend: backend.supports_tensor_alloc(CPU),
    "supports_time_estimate": lambda backend: backend.supports_time_estimate,
    "suspend": lambda backend: backend.suspend(),
}


def unnamed() -> set[str]:
    """Return the members of torch's classes that neither this file nor `call_forms` calls."""
    declared = {name for each in (ProcessGroup, Backend) for name in dir(each) if not name.startswith("__")}
    named = {part for name in (*CALLS, *OF_HOCKET, *OF_BACKEND) for part in name.split(", ")} | {
        name for name, _ in call_forms.forms()
    }
    return declared - named - OPERATIONS - NO_CALLS


def outcome(call: Callable[[Any], Any], receiver: Any) -> Any:
    try:
        return call(receiver)
    except (RuntimeError, ValueError) as error:
        print(f"rank {dist.get_rank()}: {type(error).__name__}: {error}", file=sys.stderr)
        return "refused"


def main() -> None:
    dist.init_process_group(sys.argv[1], timeout=IN_TIME)
    group: Any = dist.distributed_c10d._get_default_group()
    calls = {**CALLS, **(OF_HOCKET if sys.argv[1] == "hocket" else {})}
    found = {name: outcome(call, group) for name, call in calls.items()}
    backend = group._get_backend(CPU)
    found |= {name: outcome(call, backend) for name, call in OF_BACKEND.items()}
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, found)
    if dist.get_rank() == 0:
        print(json.dumps({"unnamed": sorted(unnamed()), "ranks": everyone}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
