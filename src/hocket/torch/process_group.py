"""torch.distributed's process group over a hocket communicator."""

# torch calls these methods in one of the several forms that its stubs declare as overloads.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    ReduceScatterOptions,
    Store,
)

from hocket import _native
from hocket.comm import Communicator
from hocket.errors import BackendUnavailable, CommTimeout, InvalidArgument, UnsupportedDtype
from hocket.session import connect_host
from hocket.torch.work import BackwardDrain, HocketWork, in_backward

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


class HocketProcessGroup(dist.ProcessGroup):
    """The "hocket" backend. Operations are asynchronous unless torch asked for a blocking one."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]  # the form without a store
        communicator._check_grad = False  # torch.distributed writes into leaves that require grad, as gloo does
        self.communicator = communicator
        self._drain = BackwardDrain()
        self._group_name = self._group_desc = "undefined"

    def getBackendName(self) -> str:
        return "hocket"

    # torch keeps these in the C++ backends of a group, and a Python one has none.
    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None, *args: Any) -> HocketWork:
        opts = opts or AllreduceOptions()
        return self._issue(
            opts, lambda **how: self.communicator.all_reduce(_one(tensors), _reduction(opts), **how), list(tensors)
        )

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> HocketWork:
        return self._issue(
            opts, lambda **how: self.communicator.broadcast(_one(tensors), opts.rootRank, **how), list(tensors)
        )

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> HocketWork:
        return self._issue(
            opts,
            lambda **how: self.communicator.reduce(_one(tensors), opts.rootRank, _reduction(opts), **how),
            list(tensors),
        )

    def barrier(self, opts: Any = None) -> HocketWork:
        return self._issue(opts or BarrierOptions(), self.communicator.barrier, [])

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HocketWork:
        return self._issue(
            opts or AllgatherOptions(),
            lambda **how: self.communicator.all_gather(output, input, **how),
            [output],
        )

    all_gather_single = _allgather_base

    def allgather(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> HocketWork:
        outputs = list(_one(output_lists))
        input = _one(inputs)
        flat = _flat_like(input, self.size())
        return self._issue(
            opts or AllgatherOptions(),
            lambda **how: self.communicator.all_gather(flat, input, **how),
            outputs,
            finish=lambda: _unpack(outputs, flat),
        )

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HocketWork:
        opts = opts or ReduceScatterOptions()
        return self._issue(
            opts, lambda **how: self.communicator.reduce_scatter(output, input, _reduction(opts), **how), [output]
        )

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], input_lists: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> HocketWork:
        return self._reduce_scatter_base(_one(outputs), _pack(_one(input_lists)), opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> HocketWork:
        for sizes in (output_split_sizes, input_split_sizes):
            if len(set(sizes)) > 1:
                raise InvalidArgument(
                    f"all_to_all_single: split sizes must be equal in this version, not {list(sizes)}"
                )
        return self._issue(
            opts or AllToAllOptions(), lambda **how: self.communicator.all_to_all(output, input, **how), [output]
        )

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> HocketWork:
        packed = _pack(inputs)
        flat = torch.empty_like(packed)
        return self._issue(
            opts or AllToAllOptions(),
            lambda **how: self.communicator.all_to_all(flat, packed, **how),
            list(outputs),
            finish=lambda: _unpack(outputs, flat),
        )

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> HocketWork:
        return HocketWork(self.communicator.isend(_one(tensors), dst, tag), list(tensors))

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> HocketWork:
        return HocketWork(self.communicator.irecv(_one(tensors), src, tag), list(tensors))

    def shutdown(self) -> None:
        """Wait for operations in flight and leave; called by ``dist.destroy_process_group()``."""
        self.communicator.finalize()

    def abort(self) -> None:
        self.communicator._leave(0.0)

    def _issue(
        self,
        opts: Any,
        call: Callable[..., _native.Work | None],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> HocketWork:
        """Make the call, blocking if torch asked for that; it is called as ``call(async_op=, timeout=)``."""
        backward = in_backward()
        is_async = backward or getattr(opts, "asyncOp", True)
        work = HocketWork(call(async_op=is_async, timeout=_seconds(opts)), tensors, finish)
        if backward:
            self._drain.add(work)
        return work


def create_process_group(options: Any, backend_options: Any) -> HocketProcessGroup:
    """Make the process group that ``init_process_group("hocket")`` and ``new_group`` ask for.

    Args:
        options: torch's _DistributedBackendOptions: store, group_rank, group_size, timeout, group_id.
        backend_options: none are known.
    """
    if backend_options is not None:
        raise InvalidArgument(f"the hocket backend has no options, but got {backend_options!r}")
    timeout_s = options.timeout.total_seconds()
    name = _agree_on_name(options.store, options.group_rank, options.group_size, timeout_s)
    communicator = connect_host(name, options.group_rank, options.group_size, timeout=timeout_s, job=name)
    return HocketProcessGroup(communicator)


def communicator_of(group: Any = None) -> Communicator:
    """See `hocket.torch.communicator`."""
    group = group if group is not None else dist.group.WORLD
    if not isinstance(group, HocketProcessGroup):
        backend = dist.get_backend(group) if group is not None else None
        raise InvalidArgument(f"the process group has backend {backend!r}, not 'hocket'")
    return group.communicator


def _agree_on_name(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """Agree through torch's store where to meet, after making sure that all ranks are on one host."""
    patience = timedelta(seconds=timeout_s)
    store.set(f"hocket/host/{rank}", _host_identity())
    if rank == 0:
        others = {}
        for peer in range(1, size):
            _wait_for(store, f"hocket/host/{peer}", patience, rank, peer, timeout_s)
            others[peer] = store.get(f"hocket/host/{peer}").decode()
        elsewhere = [peer for peer, host in others.items() if host != _host_identity()]
        store.set("hocket/name", f"elsewhere {elsewhere}" if elsewhere else f"hocket-{secrets.token_hex(16)}")
    else:
        _wait_for(store, "hocket/name", patience, rank, 0, timeout_s)
    name: str = store.get("hocket/name").decode()
    if name.startswith("elsewhere"):
        raise BackendUnavailable(
            f"ranks {name.removeprefix('elsewhere ')} are on another host or in another container than rank 0; the "
            "hocket backend of this version connects the ranks of one host"
        )
    return name


def _wait_for(store: Store, key: str, patience: timedelta, rank: int, peer: int, timeout_s: float) -> None:
    try:
        store.wait([key], patience)
    except RuntimeError as error:  # DistStoreError, whose name is not public
        raise CommTimeout(
            f"rank {rank} waited {timeout_s:g} s at start-up: rank {peer} never arrived", (peer,)
        ) from error


def _host_identity() -> str:
    """Equal for two processes that can share memory and meet at an abstract socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), str(os.getuid())])


def _one(items: Sequence[Any]) -> Any:
    if len(items) != 1:
        raise InvalidArgument(f"one tensor per process, not {len(items)}")
    return items[0]


def _reduction(opts: Any) -> Any:
    name = _REDUCTIONS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    if name is None:
        raise UnsupportedDtype(f"{opts.reduceOp} is not supported; supported are {', '.join(_REDUCTIONS.values())}")
    return name


def _seconds(opts: Any) -> float | None:
    timeout = getattr(opts, "timeout", None)
    # torch writes -1 ms, or nothing, where the group's default is meant
    return timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None


def _flat_like(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return torch.empty((count, *tensor.shape), dtype=tensor.dtype)


def _pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len({tensor.shape for tensor in tensors}) > 1:
        raise InvalidArgument(f"all tensors must have one shape so far, not {[tuple(t.shape) for t in tensors]}")
    return torch.stack([tensor.detach() for tensor in tensors])


def _unpack(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    for tensor, part in zip(tensors, flat, strict=True):
        tensor.copy_(part.view(tensor.shape))
