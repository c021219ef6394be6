"""Call every operation of hocket.torch.dist on each backend, and check which library carried it; print "done"."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed

import hocket as hk
import hocket.torch
import hocket.torch.dist as dist

dist.init_process_group(backends=("shm", "gloo", "mpi"), policy=hk.Policy.fixed({"*": "shm"}))
rank, size = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % size, (rank - 1) % size
comm = hocket.torch.communicator()


def full(value, *shape):
    return torch.full(shape or (6,), float(value))


def of_ranks(*shape):
    return [full(each, *shape) for each in range(size)]


def empty(*shape):
    return [torch.empty(shape or (6,)) for _ in range(size)]


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other), f"{one} instead of {other}"


def reductions(**how):
    x = full(rank)
    dist.all_reduce(x, **how)
    same([x], [full(sum(range(size)))])
    work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True, **how)
    work.wait()
    xs = [full(rank), full(1, 3)]
    dist.all_reduce_coalesced(xs, **how)
    same(xs, [full(sum(range(size))), full(size, 3)])
    x = full(rank)
    dist.reduce(x, 1, **how)
    if rank == 1:
        same([x], [full(sum(range(size)))])
    out = torch.empty(2)
    dist.reduce_scatter(out, [full(each, 2) for each in range(size)], **how)
    same([out], [full(size * rank, 2)])
    dist.reduce_scatter_tensor(out, torch.cat([full(each, 2) for each in range(size)]), **how)
    same([out], [full(size * rank, 2)])
    sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse, **how)
    same([sparse.to_dense()], [size * torch.eye(3)])


def movements(**how):
    x = full(rank)
    dist.broadcast(x, 1, **how)
    same([x], [full(1)])
    outs, many = empty(), torch.empty(6 * size)
    dist.all_gather(outs, full(rank), **how)
    same(outs, of_ranks())
    dist.all_gather_into_tensor(many, full(rank), **how)
    same([many], [torch.cat(of_ranks())])
    outs = empty()
    dist.gather(full(rank), outs if rank == 0 else None, 0, **how)
    if rank == 0:
        same(outs, of_ranks())
    x = torch.empty(6)
    dist.scatter(x, of_ranks() if rank == 0 else None, 0, **how)
    same([x], [full(rank)])
    outs = empty()
    dist.all_to_all(outs, [full(10 * rank + each) for each in range(size)], **how)
    same(outs, [full(10 * each + rank) for each in range(size)])
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(float(size)), **how)
    same([out], [full(rank, size)])
    dist.barrier(**how)
    dist.monitored_barrier(**how)


def messages(**how):
    x = torch.empty(6)
    work = dist.irecv(x, left, **how)
    dist.send(full(rank), right, **how)
    work.wait()
    same([x], [full(left)])
    work = dist.isend(full(rank), right, **how)
    assert dist.recv(x, left, **how) == left
    work.wait()
    operations = [dist.P2POp(dist.isend, full(rank), right), dist.P2POp(dist.irecv, x, left)]
    for work in dist.batch_isend_irecv(operations, **how):
        work.wait()
    same([x], [full(left)])


def objects(**how):
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank}, **how)
    assert found == [{"rank": each} for each in range(size)]
    found = [rank]
    dist.broadcast_object_list(found, 1, **how)
    assert found == [1]
    found = [None] * size
    dist.gather_object(rank, found if rank == 0 else None, 0, **how)
    assert rank != 0 or found == list(range(size))
    found = [None]
    dist.scatter_object_list(found, list(range(size)) if rank == 0 else None, 0, **how)
    assert found == [rank]
    if rank == 0:
        dist.send_object_list(["a", 1], 1, **how)
    elif rank == 1:
        found = [None, None]
        dist.recv_object_list(found, 0, **how)
        assert found == ["a", 1]


for backend in ("shm", "gloo", "mpi", None):
    how = {} if backend is None else {"backend": backend}
    for operations in (reductions, movements, messages, objects):
        before = len(comm.records())
        operations(**how)
        used = {record.backend for record in comm.records()[before:]}
        assert used == {backend or "shm"}, f"{operations.__name__} on {backend}: {used}"

# Groups that are made later have the same libraries and their own ranks.
pair = dist.new_group([0, 1])
if rank < 2:
    x = full(rank)
    dist.all_reduce(x, group=pair, backend="mpi")
    same([x], [full(1)])
    assert {record.backend for record in hocket.torch.communicator(pair).records()} == {"mpi"}

before = len(comm.records())
with pytest.raises(hk.BackendUnavailable, match=r"'nccl'.*shm, gloo, mpi"):
    dist.all_reduce(full(1), backend="nccl")
with pytest.raises(TypeError):
    dist.all_reduce(full(1), backends="mpi")
with pytest.raises(hk.InvalidArgument, match=r"shm.*mpi"):
    dist.recv(torch.empty(6), backend="mpi")
with pytest.raises(AttributeError, match="'all_reduze'"):
    dist.all_reduze  # noqa: B018
gloo = dist.new_group(backend="gloo")
with pytest.raises(hk.InvalidArgument, match="'gloo'"):
    dist.all_reduce(full(1), group=gloo, backend="shm")
assert len(comm.records()) == before

# The module has all operations, with the parameters of torch.distributed.
names = {}
exec("from hocket.torch.dist import *", names)
assert {*names} - {"__builtins__"} == {"P2POp", "init_process_group", "monitored_barrier", *dist.OPERATIONS}
assert {*dist.__all__, "OPERATIONS"} <= {*dir(dist)} and not {"functools", "Any"} & {*dir(dist)}
for name in dist.OPERATIONS:
    theirs, ours = (list(inspect.signature(getattr(each, name)).parameters) for each in (torch.distributed, dist))
    assert ours == [*theirs, "backend"] and name in dir(dist)
assert dist.ReduceOp is torch.distributed.ReduceOp and "get_rank" in dir(dist)

dist.destroy_process_group()
print("done")
