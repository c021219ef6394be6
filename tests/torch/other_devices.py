"""A group with another backend for another device: torch's "fake" backend, for tensors without memory."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from torch._C._distributed_c10d import FakeWork

from hocket.errors import InvalidArgument
from hocket.torch.work import HocketWork

GROUP = dist.ProcessGroup | None


def check(device: str, kind: type[dist.Work], group: GROUP) -> None:
    """Check that the works of operations on a device's tensors are of the device's backend."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, many = torch.ones(4, device=device), torch.ones(4 * size, device=device)
    lists = [torch.ones(4, device=device) for _ in range(size)]
    how = {"group": group, "async_op": True}
    works = {
        "all_reduce": dist.all_reduce(x, **how),
        "broadcast": dist.broadcast(x, 0, **how),
        "reduce": dist.reduce(x, 0, **how),
        "all_gather": dist.all_gather(lists, x, **how),
        "all_gather_single": dist.all_gather_single(many, x, **how),
        "reduce_scatter_single": dist.reduce_scatter_single(x, torch.ones_like(many), **how),
        "all_to_all_single": dist.all_to_all_single(many, torch.ones_like(many), **how),
        "all_to_all": dist.all_to_all([torch.ones_like(x) for _ in lists], [x + 1 for _ in lists], **how),
        "gather": dist.gather(x, [torch.ones_like(x) for _ in lists] if rank == 0 else None, 0, **how),
        "scatter": dist.scatter(torch.ones_like(x), lists if rank == 0 else None, 0, **how),
    }
    for name, work in works.items():
        assert type(work) is kind, f"{name} on {device}: {work}"
        work.wait()


torch.set_num_threads(1)
for config in ("cpu:hocket,meta:fake", "meta:fake,cpu:hocket"):
    dist.init_process_group(config, timeout=timedelta(seconds=60))
    ranks = list(range(dist.get_world_size()))
    for group in (None, dist.new_group(ranks), dist.new_group(ranks, backend=config)):
        found = dist.group.WORLD if group is None else group
        assert {each.type for each in found._device_types} == {"cpu", "meta"}
        assert type(found._get_backend(torch.device("meta"))).__name__ == "FakeProcessGroup"
        check("meta", FakeWork, group)
        check("cpu", HocketWork, group)
        barrier = dist.barrier(group=group, async_op=True)
        assert type(barrier) is HocketWork
        barrier.wait()
    dist.destroy_process_group()

for config, options in (("cpu:hocket,cuda:gloo", None), ("cpu:hocket,meta:fake", object())):
    try:
        dist.init_process_group(config, pg_options=options)
    except InvalidArgument:
        continue
    raise AssertionError(f"{config} with {options} was not refused")
print("done")
