"""Calls every operation of torch's gloo on two ranks; writes what became of each to FOLDER/result-RANK.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[Any, int], Any]


def _of(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def _exchange(backend: Any, rank: int) -> Any:
    return backend.send([_of(5)], 1, 3) if rank == 0 else backend.recv([_of(5)], 0, 3)


def _exchange_any(backend: Any, rank: int) -> Any:
    return backend.send([_of(6)], 1, 4) if rank == 0 else backend.recv_anysource([_of(6)], 4)


def _lists(count: int, rank: int, root: int | None = None) -> list[list[torch.Tensor]]:
    return [[_of(count), _of(count)]] if root is None or rank == root else []


BACKEND: dict[str, Call] = {
    "_allgather_base": lambda backend, rank: backend._allgather_base(_of(8), _of(4)),
    "_reduce_scatter_base": lambda backend, rank: backend._reduce_scatter_base(_of(4), _of(8)),
    "allgather": lambda backend, rank: backend.allgather(_lists(3, rank), [_of(3)]),
    "allgather_coalesced": lambda backend, rank: backend.allgather_coalesced(
        [[_of(3), _of(2)], [_of(3), _of(2)]], [_of(3), _of(2)]
    ),
    "allreduce": lambda backend, rank: backend.allreduce([_of(9)]),
    "allreduce_coalesced": lambda backend, rank: backend.allreduce_coalesced([_of(9), _of(2)]),
    "alltoall": lambda backend, rank: backend.alltoall([_of(2), _of(2)], [_of(2), _of(2)]),
    "alltoall_base": lambda backend, rank: backend.alltoall_base(_of(10), _of(10), [], []),
    "barrier": lambda backend, rank: backend.barrier(),
    "broadcast": lambda backend, rank: backend.broadcast([_of(7)], dist.BroadcastOptions()),
    "gather": lambda backend, rank: backend.gather(_lists(6, rank, 0), [_of(6)], dist.GatherOptions()),
    "monitored_barrier": lambda backend, rank: backend.monitored_barrier(timedelta(seconds=60)),
    "recv": _exchange,
    "recv_anysource": _exchange_any,
    "reduce": lambda backend, rank: backend.reduce([_of(11)], dist.ReduceOptions()),
    "reduce_scatter": lambda backend, rank: backend.reduce_scatter(
        [_of(3)], [[_of(3), _of(3)]], dist.ReduceScatterOptions()
    ),
    "scatter": lambda backend, rank: backend.scatter([_of(5)], _lists(5, rank, 0), dist.ScatterOptions()),
    "send": _exchange,
}
"""Methods of the backend that start work. `recv` and `send` are one call, because each needs the other."""


def _pair(send: Callable[..., Any], receive: Callable[..., Any]) -> Call:
    return lambda group, rank: send(_of(5), 1) if rank == 0 else receive(_of(5), 0)


def _objects(rank: int) -> list[Any]:
    return [{"a": 1}, "b"] if rank == 0 else [None, None]


def _coalesced_tensors(kind: str) -> Call:
    def call(group: Any, rank: int) -> Any:
        with dist.distributed_c10d._coalescing_manager(async_ops=False):
            for count in (2, 3):
                if kind == "all_gather":
                    dist.all_gather_into_tensor(_of(2 * count), _of(count))
                elif kind == "reduce_scatter":
                    dist.reduce_scatter_tensor(_of(count), _of(2 * count))
                else:
                    dist.all_reduce(_of(count))

    return call


def _batch(group: Any, rank: int) -> None:
    other = 1 - rank
    operations = [dist.P2POp(dist.isend, _of(4), other), dist.P2POp(dist.irecv, _of(4), other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


PUBLIC: dict[str, Call] = {
    "all_gather": lambda group, rank: dist.all_gather([_of(3), _of(3)], _of(3)),
    "all_gather_coalesced": lambda group, rank: dist.all_gather_coalesced([[_of(3)], [_of(3)]], [_of(3)]),
    "all_gather_into_tensor": lambda group, rank: dist.all_gather_into_tensor(_of(8, torch.int64), _of(4, torch.int64)),
    "all_gather_object": lambda group, rank: dist.all_gather_object([None, None], rank),
    "all_gather_single": lambda group, rank: dist.all_gather_single(_of(8), _of(4)),
    "all_reduce": lambda group, rank: dist.all_reduce(_of(9, torch.bfloat16)),
    "all_reduce_coalesced": lambda group, rank: dist.all_reduce_coalesced([_of(9), _of(2)]),
    "all_to_all": lambda group, rank: dist.all_to_all([_of(2), _of(2)], [_of(2), _of(2)]),
    "all_to_all_single": lambda group, rank: dist.all_to_all_single(_of(10), _of(10)),
    "barrier": lambda group, rank: dist.barrier(),
    "batch_isend_irecv": _batch,
    "broadcast": lambda group, rank: dist.broadcast(_of(7, torch.float64), 1),
    "broadcast_object_list": lambda group, rank: dist.broadcast_object_list(_objects(rank), 0),
    "gather": lambda group, rank: dist.gather(_of(6), [_of(6), _of(6)] if rank == 0 else None, 0),
    "gather_object": lambda group, rank: dist.gather_object(rank, [None, None] if rank == 0 else None, 0),
    "irecv": _pair(dist.isend, dist.irecv),
    "isend": _pair(dist.isend, dist.irecv),
    "monitored_barrier": lambda group, rank: dist.monitored_barrier(),
    "recv": _pair(dist.send, dist.recv),
    "recv_object_list": lambda group, rank: (
        dist.send_object_list(_objects(0), 1) if rank == 0 else dist.recv_object_list(_objects(1), 0)
    ),
    "reduce": lambda group, rank: dist.reduce(_of(11, torch.uint8), 1),
    "reduce_scatter": lambda group, rank: dist.reduce_scatter(_of(3), [_of(3), _of(3)]),
    "reduce_scatter_single": lambda group, rank: dist.reduce_scatter_single(_of(4), _of(8)),
    "reduce_scatter_tensor": lambda group, rank: dist.reduce_scatter_tensor(_of(4), _of(8)),
    "scatter": lambda group, rank: dist.scatter(_of(5), [_of(5), _of(5)] if rank == 0 else None, 0),
    "scatter_object_list": lambda group, rank: dist.scatter_object_list([None], _objects(rank), 0),
    "send": _pair(dist.send, dist.recv),
    "send_object_list": lambda group, rank: (
        dist.send_object_list(_objects(0), 1) if rank == 0 else dist.recv_object_list(_objects(1), 0)
    ),
    "coalesced all_gather_into_tensor": _coalesced_tensors("all_gather"),
    "coalesced reduce_scatter_tensor": _coalesced_tensors("reduce_scatter"),
    "coalesced all_reduce": _coalesced_tensors("all_reduce"),
}
"""Functions of torch.distributed that communicate, and those that its coalescing manager joins."""


def _run(call: Call, target: Any, rank: int) -> str:
    try:
        work = call(target, rank)
        if isinstance(work, dist.Work):
            work.wait()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def main(folder: Path) -> None:
    """Run all calls, each after a barrier and before a reduction whose root tells the calls apart."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    rank = dist.get_rank()
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    results = {}
    for prefix, calls, target in (("backend", BACKEND, backend), ("public", PUBLIC, group)):
        for name, call in calls.items():
            dist.reduce(torch.zeros(1000), 0)
            results[f"{prefix} {name}"] = _run(call, target, rank)
    dist.reduce(torch.zeros(1000), 0)
    pairs = [dist.new_group([0]), dist.new_group([1]), dist.new_group([0, 1])]
    for each in pairs:
        if rank in dist.get_process_group_ranks(each):
            dist.all_reduce(torch.zeros(100), group=each)
    (folder / f"result-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
