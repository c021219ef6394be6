"""Check every operation of the backend argv[1] against its definition; a rank with another result raises."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
)


def same(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert torch.equal(got, expected), f"{what}: got {got}, expected {expected}"


def reductions(rank: int, size: int) -> None:
    for dtype in DTYPES:
        values = [torch.arange(1, 6).add(each).to(dtype) for each in range(size)]
        stacked = torch.stack(values)
        expected = {
            dist.ReduceOp.SUM: stacked.sum(0, dtype=dtype),
            dist.ReduceOp.MAX: stacked.max(0).values,
            dist.ReduceOp.MIN: stacked.min(0).values,
            dist.ReduceOp.PRODUCT: stacked.prod(0, dtype=dtype),
        }
        for op, result in expected.items():
            x = values[rank].clone()
            dist.all_reduce(x, op)
            same(x, result, f"all_reduce {op} {dtype}")
            x = values[rank].clone()
            dist.reduce(x, size - 1, op)
            same(x, result if rank == size - 1 else values[rank], f"reduce {op} {dtype}")
            x = torch.cat([values[rank]] * size)
            out = torch.empty_like(values[rank])
            dist.reduce_scatter_tensor(out, x, op)
            same(out, result, f"reduce_scatter_tensor {op} {dtype}")
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same(x, torch.full((3,), sum(range(size)) / size), "all_reduce AVG")
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), float(rank + block)) for block in range(size)])
    same(out, torch.full((2,), float(sum(range(size)) + size * rank)), "reduce_scatter of a list")


def movements(rank: int, size: int) -> None:
    x = torch.full((2, 3), rank)
    dist.broadcast(x, size - 1)
    same(x, torch.full((2, 3), size - 1), "broadcast")
    parts = [torch.empty(2, 2, dtype=torch.int64) for _ in range(size)]
    work = dist.all_gather(parts, torch.full((2, 2), rank), async_op=True)
    work.wait()
    for each, part in enumerate(parts):
        same(part, torch.full((2, 2), each), "all_gather")
    out = torch.empty(size * 3)
    dist.all_gather_into_tensor(out, torch.full((3,), float(rank)))
    same(out, torch.arange(size).repeat_interleave(3).float(), "all_gather_into_tensor")
    out = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(out, torch.arange(size) + 10 * rank)
    same(out, torch.arange(size) * 10 + rank, "all_to_all_single")
    outs = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((2,), float(10 * rank + each)) for each in range(size)])
    same(torch.stack(outs), torch.tensor([[10.0 * each + rank] * 2 for each in range(size)]), "all_to_all")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]
    values = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(values, src=0)
    assert values == [{"from": 0}]


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1000, 100_000):
        received = torch.empty(count, dtype=torch.int64)
        work = dist.isend(torch.arange(count) + rank, right, tag=count)
        dist.recv(received, left, tag=count)
        work.wait()
        same(received, torch.arange(count) + left, f"send of {count}")


def futures(rank: int, size: int) -> None:
    """Check several futures outside of a backward pass, with waits in another order than the issues."""
    tensors = [torch.full((4096,), float(each + rank)) for each in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    halved = [work.get_future().then(lambda future: future.value()[0] / 2) for work in works]
    for each in reversed(range(6)):
        expected = sum(each + peer for peer in range(size)) / 2
        same(halved[each].wait(), torch.full((4096,), expected), "future")
    assert all(work.is_completed() for work in works)


def groups(rank: int, size: int) -> None:
    even = dist.new_group([each for each in range(size) if each % 2 == 0])
    if rank % 2 == 0:
        x = torch.ones(1)
        dist.all_reduce(x, group=even)
        same(x, torch.full((1,), float((size + 1) // 2)), "group")
        dist.destroy_process_group(even)


def mistakes(rank: int, size: int) -> None:
    if sys.argv[1] != "hocket":
        return
    from hocket.errors import CollectiveMismatch, InvalidArgument, UnsupportedDtype
    from hocket.torch import communicator

    def raises(kind: type[BaseException], call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except kind:
            return
        raise AssertionError(f"no {kind.__name__}")

    raises(UnsupportedDtype, lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG))
    raises(UnsupportedDtype, lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR))
    if communicator().num_hosts == 1:  # between hosts a mismatch is detected later, or as a stall
        raises(CollectiveMismatch, lambda: dist.all_reduce(torch.ones(2 + rank)))
    raises(InvalidArgument, lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1], [2, 1]))
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20))
    leaf = torch.ones(2, requires_grad=True)
    dist.all_reduce(leaf)  # as gloo, the backend writes into leaves
    same(leaf.detach(), torch.full((2,), float(size)), "all_reduce of a leaf")
    assert [record.op for record in communicator().records()][-1] == "all_reduce"


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    place = (dist.get_rank(), dist.get_world_size())
    for check in (reductions, movements, messages, futures, groups, mistakes):
        check(*place)
        dist.barrier()
    dist.destroy_process_group()
    print(f"rank {place[0]} done")
