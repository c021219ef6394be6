"""Types that hocket carries as other types, against torch's sums; and lists of a wrong length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import hocket.torch
from hocket.errors import CollectiveMismatch, InvalidArgument
from hocket.torch.carried import _FLOAT8

torch.set_num_threads(1)
dist.init_process_group("hocket")
rank, size = dist.get_rank(), dist.get_world_size()
DTYPES = [*sorted(_FLOAT8, key=str), torch.complex32, torch.float16]


def values(of: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of one rank, chosen so that sums over ranks must be rounded."""
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(of)) + 0.5
    return numbers.to(dtype)


def same(x: torch.Tensor, expected: torch.Tensor) -> None:
    assert x.dtype == expected.dtype and x.shape == expected.shape
    assert torch.equal(x.view(torch.uint8), expected.contiguous().view(torch.uint8)), (x, expected)


def total(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum over ranks, in the order of ranks, in a wider type and rounded once."""
    wide = torch.complex64 if dtype == torch.complex32 else torch.float32
    return sum(values(of, count, dtype).to(wide) for of in range(size)).to(dtype)  # type: ignore[union-attr]


def moves(dtype: torch.dtype) -> None:
    own, others = values(rank, 5, dtype), [values(of, 5, dtype) for of in range(size)]
    x = own.clone()
    dist.broadcast(x, 1)
    same(x, others[1])
    outs = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(outs, own)
    for out, expected in zip(outs, others, strict=True):
        same(out, expected)
    dist.gather(own, outs if rank == 0 else None, 0)
    dist.scatter(x, others if rank == 0 else None, 0)
    same(x, own)
    flat = torch.empty(5 * size).to(dtype)
    dist.all_gather_into_tensor(flat, own)
    same(flat, torch.cat(others))
    dist.all_to_all(outs, [values(10 * rank + to, 5, dtype) for to in range(size)])
    for of, out in enumerate(outs):
        same(out, values(10 * of + rank, 5, dtype))
    right, left = (rank + 1) % size, (rank - 1) % size
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, right), dist.P2POp(dist.irecv, x, left)]):
        work.wait()
    same(x, others[left])
    table = values(rank, 24, dtype).view(4, 6).t()  # not contiguous
    dist.broadcast(table, 0)
    same(table.contiguous(), values(0, 24, dtype).view(4, 6).t())


def sums(dtype: torch.dtype) -> None:
    for async_op in (False, True):
        x = values(rank, 7, dtype)
        work = dist.all_reduce(x, async_op=async_op)
        if work is not None:
            work.wait()
            assert work.get_future().value()[0] is not None
        same(x, total(7, dtype))
    x = values(rank, 7, dtype)
    dist.reduce(x, 0)
    same(x, total(7, dtype) if rank == 0 else values(rank, 7, dtype))
    if dtype != torch.complex32:
        x, biggest = values(rank, 7, dtype), torch.stack([values(of, 7, dtype).float() for of in range(size)])
        dist.all_reduce(x, dist.ReduceOp.MAX)
        same(x, biggest.amax(0).to(dtype))
    out = torch.empty(3).to(dtype)
    dist.reduce_scatter_tensor(out, values(rank, 3 * size, dtype))
    same(out, total(3 * size, dtype)[3 * rank : 3 * rank + 3])
    dist.reduce_scatter(out, list(values(rank, 3 * size, dtype).split(3)))
    same(out, total(3 * size, dtype)[3 * rank : 3 * rank + 3])
    if dtype != torch.complex32:  # torch does not support this view of complex32
        xs = [values(rank, 7, dtype), values(rank, 9, dtype)]
        dist.all_reduce_coalesced(xs)
        same(xs[0], total(7, dtype))
        same(xs[1], total(9, dtype))


def lists_of_a_wrong_length() -> None:
    """A call that fails on one rank fails on all ranks, and later calls work."""
    x = torch.ones(2)
    calls: dict[str, Callable[[int], object]] = {
        "scatter": lambda count: dist.scatter(x, [x] * count if rank == 1 else None, 1),
        "scatter_object_list": lambda count: dist.scatter_object_list(
            [None], [None] * count if rank == 1 else [None], 1
        ),
        "gather": lambda count: dist.gather(x, [torch.empty(2)] * count if rank == 1 else None, 1),
        "all_gather": lambda count: dist.all_gather([torch.empty(2) for _ in range(count)], x),
        "reduce_scatter": lambda count: dist.reduce_scatter(torch.empty(2), [x] * count),
        "all_to_all": lambda count: dist.all_to_all([torch.empty(2) for _ in range(size)], [x] * count),
    }
    for name, call in calls.items():
        for count in (size - 1, size + 1):
            raised: Exception | None = None
            try:
                call(count if rank == 1 else size)
            except (InvalidArgument, CollectiveMismatch) as error:
                raised = error
            assert type(raised) is (InvalidArgument if rank == 1 else CollectiveMismatch), f"{name}: {raised!r}"
            after = torch.ones(3)
            dist.all_reduce(after)
            assert (after == size).all()


for each in DTYPES:
    for check in (moves, sums):
        try:
            partial(check, each)()
        except BaseException as error:
            raise AssertionError(f"{check.__name__} of {each}") from error
if hocket.torch.communicator().num_hosts == 1:  # between hosts a library cannot continue after mismatched operations
    lists_of_a_wrong_length()
dist.destroy_process_group()
print(f"rank {rank} done")
