"""torch.distributed over one of its backends, called directly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from hocket.bench.drivers.base import Binder, Call, Driver, gather_and_fold
from hocket.errors import InvalidArgument

_PLACEHOLDERS = ("undefined", "fake")  # backends that torch lists, but that are no libraries
_TIMEOUT = timedelta(seconds=120)


class TorchDriver(Driver):
    """The functions of `torch.distributed` on tensors and on objects.

    Other arrays are passed as tensors on the same memory, which are made once.

    Args:
        name: the name by which users choose it, such as "torch:gloo"; the part after the colon is the backend.
    """

    def __init__(self, name: str) -> None:
        import torch.distributed as dist

        backend = name.partition(":")[2]
        check_backend(backend)
        self.name, self._dist, self._group = name, dist, None
        if not dist.is_initialized():  # the first driver in this process
            dist.init_process_group(backend, timeout=_TIMEOUT)
        else:
            self._group = dist.new_group(backend=backend, timeout=_TIMEOUT)
        self.refusals = (*Driver.refusals, TypeError, ValueError, RuntimeError)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        memory = _memory(dist, self._group, self.size)
        self._binders = {
            "buffer": memory,
            "dlpack": {},  # torch accepts only tensors
            "pickle": _objects(dist, self._group, self.rank, self.size),
            "pickle5": {},
        }

    def barrier(self) -> object:
        self._dist.barrier(group=self._group)
        return None

    def share(self, obj: Any) -> list[Any]:
        found: list[Any] = self.bind("pickle", "all_gather", obj)()
        return found

    def begin(self, op: str, *arguments: Any) -> Call:
        bound: Callable[..., Any] = self.bind("buffer", op, *arguments)
        return partial(bound, async_op=True)

    def finalize(self) -> None:
        if self._group is None and self._dist.is_initialized():
            self._dist.destroy_process_group()


def check_backend(name: str) -> None:
    """Raise InvalidArgument if torch.distributed has no such backend here."""
    import torch.distributed as dist

    known = [
        each for each in dist.Backend.backend_list if each not in _PLACEHOLDERS and dist.is_backend_available(each)
    ]
    if name not in known:
        raise InvalidArgument(f"torch.distributed has no backend {name!r} here; there are {', '.join(known)}")


def _memory(dist: Any, group: Any, size: int) -> Mapping[str, Binder]:
    ops = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

    def parts(x: Any, counts: Sequence[int] | None = None) -> Any:
        return None if x is None else list(x.chunk(size) if counts is None else x.split(list(counts)))

    # torch 2.13 renamed these functions; since then, the old names warn.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    plain: dict[str, Binder] = {
        "send": lambda x, peer: partial(dist.send, x, peer, group),
        "recv": lambda x, peer: partial(dist.recv, x, peer, group),
        "isend": lambda x, peer: partial(dist.isend, x, peer, group),
        "irecv": lambda x, peer: partial(dist.irecv, x, peer, group),
        "barrier": lambda: partial(dist.barrier, group),
        "broadcast": lambda x, root: partial(dist.broadcast, x, root, group),
        "reduce": lambda x, root, op: partial(dist.reduce, x, root, ops[op], group),
        "all_reduce": lambda x, op: partial(dist.all_reduce, x, ops[op], group),
        "gather": lambda out, x, root: partial(dist.gather, x, parts(out), root, group),
        "scatter": lambda out, x, root: partial(dist.scatter, out, parts(x), root, group),
        "all_gather": lambda out, x: partial(all_gather, out, x, group),
        "all_to_all": lambda out, x: partial(dist.all_to_all_single, out, x, None, None, group),
        "reduce_scatter": lambda out, x, op: partial(reduce_scatter, out, x, ops[op], group),
        "all_to_allv": lambda out, x, counts, given: partial(
            dist.all_to_all_single, out, x, list(counts), list(given), group
        ),
    }
    plain |= {f"{op} in-place": plain[op] for op in ("all_gather", "reduce_scatter")}
    return {op: partial(_bind_tensors, bind) for op, bind in plain.items()}


def _bind_tensors(bind: Binder, *arguments: Any) -> Call:
    """Bind a function to tensors on the memory of its array arguments: torch accepts only tensors."""
    return bind(*map(_as_tensor, arguments))


def _as_tensor(argument: Any) -> Any:
    import torch

    if isinstance(argument, np.ndarray):
        return torch.from_numpy(argument)
    if isinstance(argument, bytearray | memoryview):
        return torch.frombuffer(argument, dtype=torch.uint8) if argument else torch.empty(0, dtype=torch.uint8)
    return argument


def _objects(dist: Any, group: Any, rank: int, size: int) -> Mapping[str, Binder]:
    def receive(peer: int) -> Any:
        found = [None]
        dist.recv_object_list(found, peer, group)
        return found[0]

    def broadcast(obj: Any) -> Any:
        found = [obj if rank == 0 else None]
        dist.broadcast_object_list(found, 0, group)
        return found[0]

    def gather(obj: Any) -> Any:
        found: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(obj, found, 0, group)
        return found

    def all_gather(obj: Any) -> Any:
        found: list[Any] = [None] * size
        dist.all_gather_object(found, obj, group)
        return found

    def scatter(objs: Any) -> Any:
        found: list[Any] = [None]
        dist.scatter_object_list(found, objs, 0, group)
        return found[0]

    return {
        "send": lambda obj, peer: partial(dist.send_object_list, [obj], peer, group),
        "recv": lambda peer: partial(receive, peer),
        "barrier": lambda: partial(dist.barrier, group),
        "broadcast": lambda obj: partial(broadcast, obj),
        "gather": lambda obj: partial(gather, obj),
        "scatter": lambda objs: partial(scatter, objs),
        "all_gather": lambda obj: partial(all_gather, obj),
        "reduce": partial(partial, gather_and_fold, gather),
        "all_reduce": partial(partial, gather_and_fold, all_gather),
    }
