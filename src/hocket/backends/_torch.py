"""The common parts of libraries that are used through torch's process groups.

The code here calls the methods of group objects, not torch.distributed, because torch.distributed does not know
hocket's communicators.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from hocket import _native
from hocket.backends.base import BackendJob, Lane, call_driving

Started = tuple[Any, Callable[[], None] | None]
"""The group's work, and a function to call when it has finished."""


def distributed_or_reason() -> tuple[Any, str]:
    """Return torch.distributed, or None and the reason why it is not usable."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None, "torch is not installed: pip install 'hocket[torch]'"
    return (dist, "") if dist.is_available() else (None, "this build of torch has no torch.distributed")


def connect_store(job: BackendJob, library: str) -> Any:
    """Return a store, hosted by rank 0, through which the ranks of a library's groups find each other."""
    from torch._C._distributed_c10d import TCPStore

    timeout = timedelta_of(job.timeout)
    stores = []

    def listen() -> str:
        stores.append(TCPStore(job.address, 0, is_master=True, wait_for_workers=False, timeout=timeout))
        return f"{job.address} {stores[0].port}"

    host, port = job.from_rank_zero(listen).split()
    if not stores:
        connect = partial(TCPStore, host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
        stores.append(call_driving(f"connecting to {library}'s store", connect, job.timeout))
    return stores[0]


class GroupLane(Lane):
    """A lane of one process group."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.size())
        self._group = group
        self._rank = group.rank()


class GroupCollectives(GroupLane):
    """Collectives that every process group has, on raw memory; operations that only move data use bytes.

    The method of an operation is named after its kind.
    """

    def start(self, operation: _native.LaneOperation) -> Started:
        started: Started = getattr(self, f"_{operation.kind}")(operation)
        return started

    @abstractmethod
    def _tensor(self, operation: _native.LaneOperation, address: int, nbytes: int, dtype: str = "uint8") -> Any:
        """Return a tensor view of raw memory, which hocket keeps while the operation runs."""

    def _in(self, operation: _native.LaneOperation) -> Any:
        return self._tensor(operation, operation.in_address, operation.in_nbytes)

    def _out(self, operation: _native.LaneOperation) -> Any:
        return self._tensor(operation, operation.out_address, operation.out_nbytes)

    def _nothing(self, operation: _native.LaneOperation) -> Any:
        return self._tensor(operation, 0, 0)

    def _all_reduce(self, operation: _native.LaneOperation) -> Started:
        x = self._tensor(operation, operation.out_address, operation.out_nbytes, operation.dtype)
        return self._group.allreduce([x], reduction_options("AllreduceOptions", operation)), None

    def _reduce(self, operation: _native.LaneOperation) -> Started:
        x = self._tensor(operation, operation.in_address, operation.in_nbytes, operation.dtype)
        options = reduction_options("ReduceOptions", operation)
        options.rootRank = operation.root
        # a group may use the arrays of the other ranks as scratch memory; gloo does
        return self._group.reduce([x if operation.root == self._rank else x.clone()], options), None

    def _broadcast(self, operation: _native.LaneOperation) -> Started:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = operation.root
        return self._group.broadcast([self._out(operation)], options), None

    def _all_gather(self, operation: _native.LaneOperation) -> Started:
        x = self._in(operation)
        if operation.in_address == operation.out_address + self._rank * operation.nbytes:
            x = x.clone()
        return self._group._allgather_base(self._out(operation), x), None

    def _gather(self, operation: _native.LaneOperation) -> Started:
        from torch.distributed import GatherOptions

        options = GatherOptions()
        options.rootRank = operation.root
        x = self._in(operation)
        if operation.root != self._rank:
            return self._group.gather([], [x], options), None
        if operation.in_address == operation.out_address + self._rank * operation.nbytes:
            x = x.clone()
        blocks = list(self._out(operation).view(self.size, operation.nbytes))
        return self._group.gather([blocks], [x], options), None

    def _scatter(self, operation: _native.LaneOperation) -> Started:
        from torch.distributed import ScatterOptions

        options = ScatterOptions()
        options.rootRank = operation.root
        out = self._out(operation)
        if operation.root != self._rank:
            return self._group.scatter([out], [], options), None
        x = self._in(operation)
        if operation.out_address == operation.in_address + self._rank * operation.nbytes:
            x = x.clone()
        return self._group.scatter([out], [list(x.view(self.size, operation.nbytes))], options), None

    def _all_to_all(self, operation: _native.LaneOperation) -> Started:
        out, x = self._out(operation), self._in(operation)
        return self._group.alltoall_base(out, x, operation.out_blocks, operation.in_blocks), None

    _all_to_allv = _all_to_all

    # Only all_to_all supports blocks of different sizes; the other operations are special cases of it.

    def _all_gatherv(self, operation: _native.LaneOperation) -> Started:
        x = self._in(operation).repeat(self.size)
        sizes = [operation.in_nbytes] * self.size
        return self._group.alltoall_base(self._out(operation), x, operation.out_blocks, sizes), None

    def _gatherv(self, operation: _native.LaneOperation) -> Started:
        x = self._in(operation)
        to_root = self._to_root(operation, x)
        if operation.root != self._rank:
            return self._group.alltoall_base(self._nothing(operation), x, [0] * self.size, to_root), None
        if operation.in_address == operation.out_address + sum(operation.out_blocks[: self._rank]):
            x = x.clone()
        return self._group.alltoall_base(self._out(operation), x, operation.out_blocks, to_root), None

    def _scatterv(self, operation: _native.LaneOperation) -> Started:
        out = self._out(operation)
        from_root = self._to_root(operation, out)
        if operation.root != self._rank:
            return self._group.alltoall_base(out, self._nothing(operation), from_root, [0] * self.size), None
        x = self._in(operation)
        if operation.out_address == operation.in_address + sum(operation.in_blocks[: self._rank]):
            x = x.clone()
        return self._group.alltoall_base(out, x, from_root, operation.in_blocks), None

    def _to_root(self, operation: _native.LaneOperation, block: Any) -> list[int]:
        """Return sizes of blocks in which only the block of the root is not empty."""
        return [block.numel() if rank == operation.root else 0 for rank in range(self.size)]


def reduction_options(name: str, operation: _native.LaneOperation) -> Any:
    """Return the options of a torch operation that reduces; `name` is their class, e.g. "AllreduceOptions"."""
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    options = getattr(c10d, name)()
    reductions = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
                  "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}  # fmt: skip
    options.reduceOp = reductions[operation.reduction or "sum"]
    return options


def host_tensor(address: int, nbytes: int, dtype: str = "uint8") -> Any:
    """Return a tensor view of raw memory of the host."""
    import torch

    kind = torch.uint8 if dtype == "bool" else getattr(torch, dtype)
    if nbytes == 0:
        return torch.empty(0, dtype=kind)
    return torch.frombuffer((ctypes.c_byte * nbytes).from_address(address), dtype=kind)


def timedelta_of(seconds: float) -> timedelta:
    """Return a timeout as torch expects it; infinity becomes about 30 years, the range of a timedelta is limited."""
    return timedelta(seconds=min(seconds, 1e9))
