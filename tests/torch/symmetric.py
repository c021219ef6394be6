"""DDP and FSDP2 with buffers in shared memory have the same losses, and collectives run in these buffers."""

from __future__ import annotations

import gc
import os

import pytest
import torch
import torch.distributed as dist
from parallel import Block, make_model, train
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hocket as hk
import hocket.torch


def ddp(*, is_symmetric: bool, as_views: bool) -> list[float]:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.01, gradient_as_bucket_view=as_views)
    if is_symmetric:
        hocket.torch.use_symmetric_buckets(model)
    return train(model, dist.get_rank())


def fsdp(*, is_symmetric: bool) -> list[float]:
    model = make_model()
    for part in (*(each for each in model if isinstance(each, Block)), model):
        fully_shard(part)
        if is_symmetric:
            assert isinstance(part, FSDPModule)
            part.set_allocate_memory_from_process_group_for_comm(True)
    return train(model, dist.get_rank())


def in_place_since(seq: int, op: str, least_nbytes: int) -> list[bool]:
    records = hocket.torch.communicator().records()
    return [each.in_place for each in records if each.seq > seq and each.op == op and each.nbytes >= least_nbytes]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("hocket")
    for as_views in (False, True):
        plain = ddp(is_symmetric=False, as_views=as_views)
        last = hocket.torch.communicator().records()[-1].seq
        shared = ddp(is_symmetric=True, as_views=as_views)
        # With three ranks DDP divides before it sums, and the hook divides afterwards.
        assert shared == (plain if dist.get_world_size() == 2 else pytest.approx(plain, rel=1e-4))
        reductions = in_place_since(last, "all_reduce", 8192)
        assert len(reductions) >= 6 and all(reductions[2:]), reductions
    plain = fsdp(is_symmetric=False)
    last = hocket.torch.communicator().records()[-1].seq
    assert fsdp(is_symmetric=True) == plain
    for op in ("all_gather", "reduce_scatter"):
        done = in_place_since(last, op, 8192)
        assert len(done) >= 6 and all(done[2:]), (op, done)
    gc.collect()
    held = hocket.torch.communicator()._fabric.host.num_allocated
    assert held < 1 << 20, held  # the memory of finished trainings was released
    with pytest.raises(hk.InvalidType, match=r"DistributedDataParallel.*Linear"):
        hocket.torch.use_symmetric_buckets(nn.Linear(2, 2))  # type: ignore[arg-type]
    other = dist.new_group(backend="gloo")
    wrapped = DistributedDataParallel(nn.Linear(2, 2), process_group=other)
    with pytest.raises(hk.InvalidArgument, match="'gloo'"):
        hocket.torch.use_symmetric_buckets(wrapped)
    del wrapped
    gc.collect()
    dist.destroy_process_group()
    os.write(1, b"done\n")


if __name__ == "__main__":
    main()
