"""Move tensors in every form of torch.distributed; write this rank's results to argv[2] for comparison."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import hocket.torch

Result = tuple[str, list[torch.Tensor]]


def uneven(rank: int, size: int) -> Iterator[Result]:
    splits = [[(source + 2 * target) % 4 for target in range(size)] for source in range(size)]
    sent = torch.arange(3 * sum(splits[rank]), dtype=torch.float64).view(-1, 3) + 100 * rank
    received = torch.zeros(sum(row[rank] for row in splits), 3, dtype=torch.float64)
    dist.all_to_all_single(received, sent, [row[rank] for row in splits], splits[rank])
    yield "all_to_all_single with splits", [received]
    # A rank may leave out equal sizes even if other ranks' sizes are unequal.
    counts = [[1 + (source == 1 and target == size - 1) for target in range(size)] for source in range(size)]
    own, others = counts[rank], [row[rank] for row in counts]
    for writes in (-1, *range(size)):
        in_sizes, out_sizes = (None if len(set(each)) == 1 and rank != writes else each for each in (own, others))
        came = torch.zeros(sum(others))
        dist.all_to_all_single(came, torch.arange(float(sum(own))) + 10 * rank, out_sizes, in_sizes)
        yield f"all_to_all_single where rank {writes} writes equal splits", [came]
    if sys.argv[1] == "hocket":  # gloo does not support lists of different shapes
        outs = [torch.zeros(splits[source][rank], 3, dtype=torch.float64) for source in range(size)]
        dist.all_to_all(outs, list(sent.split(splits[rank])))
        assert torch.equal(torch.cat(outs), received)
        parts = [torch.zeros(each + 1, 2) for each in range(size)]
        dist.all_gather(parts, torch.full((rank + 1, 2), float(rank)))
        assert all((part == each).all() for each, part in enumerate(parts))
        out = torch.zeros(rank + 2)
        dist.reduce_scatter(out, [torch.full((each + 2,), float(rank)) for each in range(size)])
        assert (out == sum(range(size))).all()


def rooted(rank: int, size: int) -> Iterator[Result]:
    for root in range(size):
        gathered = [torch.zeros(2, 3) for _ in range(size)] if rank == root else None
        work = dist.gather(torch.full((2, 3), float(rank + root)), gathered, root, async_op=True)
        work.wait()
        yield f"gather to {root}", gathered or []
        x = torch.zeros(4, dtype=torch.int32)
        given = [torch.arange(4, dtype=torch.int32) * each + root for each in range(size)] if rank == root else None
        dist.scatter(x, given, root)
        yield f"scatter from {root}", [x]
    objects: list[Any] = [None] * size
    dist.gather_object({"rank": rank}, objects if rank == 0 else None, 0)
    assert rank or objects == [{"rank": each} for each in range(size)]
    out: list[Any] = [None]
    dist.scatter_object_list(out, [f"for {each}" for each in range(size)] if rank == 0 else None, 0)
    assert out == [f"for {rank}"]
    dist.send_object_list([{"ring": rank}], (rank + 1) % size) if rank % 2 == 0 else None
    if (rank - 1) % size % 2 == 0:
        dist.recv_object_list(out, (rank - 1) % size)
        assert out == [{"ring": (rank - 1) % size}]
    if rank % 2 and size % 2 == 0:
        dist.send_object_list([0], (rank + 1) % size)
    elif size % 2 == 0:
        dist.recv_object_list(out, (rank - 1) % size)


def reductions(rank: int, size: int) -> Iterator[Result]:
    for dtype in (torch.float32, torch.int64, torch.uint8):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            tensors = [torch.arange(5).to(dtype) + rank, torch.full((2, 2), 3 + rank, dtype=dtype)]
            dist.all_reduce_coalesced(tensors, op)
            yield f"all_reduce_coalesced {op} {dtype}", tensors
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        x, out = torch.tensor([True, False, rank == 0, rank == 1]), torch.zeros(2, dtype=torch.bool)
        dist.reduce_scatter_single(out, x.repeat(size)[: 2 * size], getattr(dist.ReduceOp, op))
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        yield f"bool {op}", [x, out]
    x = torch.sparse_coo_tensor([[0, rank, 3], [1, 0, rank]], torch.tensor([1.0, 2.0, 3.0 + rank]), (5, 4))
    dist.all_reduce(x)
    yield "sparse", [x.to_dense()]
    tensors = [torch.full((3,), float(rank + each)) for each in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    yield "coalescing manager, all_reduce", tensors


def coalesced(rank: int, size: int) -> Iterator[Result]:
    xs = [torch.full((2,), float(rank)), torch.full((3, 2), 10.0 + rank)]
    outs = [[torch.zeros_like(x) for x in xs] for _ in range(size)]
    dist.all_gather_coalesced(outs, xs)
    yield "all_gather_coalesced", [each for of_rank in outs for each in of_rank]
    flats = [torch.zeros(size * x.numel()) for x in xs]
    with dist._coalescing_manager():
        for flat, x in zip(flats, xs, strict=True):
            dist.all_gather_single(flat, x.view(-1))
    yield "coalescing manager, all_gather", flats


def messages(rank: int, size: int) -> Iterator[Result]:
    right, left = (rank + 1) % size, (rank - 1) % size
    received = [torch.zeros(each) for each in (1, 3000, 90_000)]
    operations = [dist.P2POp(dist.irecv, x, left, tag=tag) for tag, x in enumerate(received)]
    operations += [dist.P2POp(dist.isend, torch.full_like(x, rank), right, tag=t) for t, x in enumerate(received)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    yield "batch", received


def any_source(rank: int, size: int) -> Iterator[Result]:
    if sys.argv[1] == "hocket" and hocket.torch.communicator().num_hosts > 1:
        return  # supported over shared memory only
    if rank == 0:
        got = torch.zeros(size - 1)
        for _ in range(size - 1):
            x = torch.zeros(1)
            source = dist.recv(x, tag=7)
            got[source - 1] = x[0]
        yield "any source", [got]
    else:
        dist.send(torch.tensor([float(10 * rank)]), 0, tag=7)
    dist.barrier()
    if rank == 0:
        x = torch.zeros(50_000)
        work = dist.irecv(x, tag=8)
        work.wait()
        yield "any source, asynchronous", [x]
    elif rank == 1:
        dist.send(torch.arange(50_000.0), 0, tag=8)


def functionals(rank: int, size: int) -> Iterator[Result]:
    world = dist.group.WORLD
    x = torch.arange(4.0 * size) + rank
    for name, result in {
        "all_reduce": functional.all_reduce(x, "sum", world),
        "all_gather": functional.all_gather_tensor(x, 0, world),
        "reduce_scatter": functional.reduce_scatter_tensor(x, "sum", 0, world),
        "all_to_all": functional.all_to_all_single(x, None, None, world),
        "broadcast": functional.broadcast(x, size - 1, world),
    }.items():
        yield f"functional {name}", [torch.ops._c10d_functional.wait_tensor(result)]
    many = functional.all_reduce_coalesced([x, x + 1], "sum", world)
    yield "functional all_reduce_coalesced", [torch.ops._c10d_functional.wait_tensor(each) for each in many]
    gathered = functional.all_gather_into_tensor_coalesced([x, x + 1], world)
    yield "functional all_gather_coalesced", [torch.ops._c10d_functional.wait_tensor(each) for each in gathered]
    scattered = functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], world)
    yield "functional reduce_scatter_coalesced", [torch.ops._c10d_functional.wait_tensor(each) for each in scattered]


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    place = (dist.get_rank(), dist.get_world_size())
    results: dict[str, list[torch.Tensor]] = {}
    for check in (uneven, rooted, reductions, coalesced, messages, any_source, functionals):
        results.update(check(*place))
        dist.barrier()
    torch.save(results, f"{sys.argv[2]}/{sys.argv[1]}-{place[0]}.pt")
    dist.destroy_process_group()
    print(f"rank {place[0]} done")
