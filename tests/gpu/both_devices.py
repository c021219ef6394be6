"""What a program does on both devices: operations, DDP, FSDP2, checkpoints; its results as JSON in a folder."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

config, folder = sys.argv[1], Path(sys.argv[2])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["NCCL_HOSTID"] = f"host-{rank}"  # one GPU for two ranks is refused otherwise
torch.cuda.set_device(0)
torch.set_num_threads(1)
dist.init_process_group(config, timeout=timedelta(seconds=60))
found: dict[str, Any] = {}


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def train(module: torch.nn.Module, device: str) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = module(torch.randn(16, 64, generator=generator).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


for device in ("cpu", "cuda"):
    x = torch.full((1000,), rank + 1.0, device=device)
    dist.all_reduce(x)
    lists = [torch.zeros(3, device=device) for _ in range(size)]
    dist.all_gather(lists, torch.full((3,), float(rank), device=device))
    part = torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size, device=device))
    swapped = torch.zeros(size, device=device)
    dist.all_to_all_single(swapped, torch.arange(float(size), device=device) + 10 * rank)
    message = torch.full((5,), float(rank), device=device)
    for source in range(size):
        if rank == source:
            dist.send(message, (rank + 1) % size)
        elif (source + 1) % size == rank:
            dist.recv(out := torch.zeros(5, device=device), source)
            found[f"{device} message"] = out.tolist()
    work = dist.broadcast(x, 1, async_op=True)
    assert work is not None
    work.wait()
    found[f"{device} operations"] = [x[:2].tolist(), torch.stack(lists).tolist(), part.tolist(), swapped.tolist()]
    found[f"{device} DDP"] = train(DistributedDataParallel(model().to(device)), device)
    sharded = fully_shard(model().to(device), mesh=init_device_mesh(device, (size,)))
    found[f"{device} FSDP2"] = train(sharded, device)
    whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    fresh = fully_shard(model().to(device), mesh=init_device_mesh(device, (size,)))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(fresh, whole if rank == 0 else {}, options=options)
    found[f"{device} loaded"] = train(fresh, device)
objects: list[Any] = [None] * size
dist.all_gather_object(objects, {"rank": rank})
found["objects"] = objects
dist.barrier()
group = dist.new_group([0, 1])
y = torch.ones(3, device="cuda")
dist.all_reduce(y, group=group)
found["group"] = y.tolist()
(folder / f"{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
