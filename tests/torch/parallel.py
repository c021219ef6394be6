"""Train in every parallel form of torch over the backend argv[1]; write this rank's losses to argv[2]."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recompute

WIDTH, BATCH, STEPS = 32, 8, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 4))


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1 + rank)
    return [
        (torch.randn(BATCH, WIDTH, generator=generator), torch.randint(4, (BATCH,), generator=generator))
        for _ in range(STEPS)
    ]


def train(model: nn.Module, rank: int, parameters: Any = None) -> list[float]:
    optimizer = torch.optim.AdamW(parameters or model.parameters(), 1e-2)
    losses = []
    for x, y in batches(rank):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp_with_hook(register: Callable[[DistributedDataParallel], None], bucket_mb: float = 0.01) -> list[float]:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_mb)
    register(model)
    return train(model, dist.get_rank())


def fsdp() -> list[float]:
    model = make_model()
    for block in model[:2]:
        fully_shard(block)
    fully_shard(model)
    return train(model, dist.get_rank())


class Recomputed(nn.Module):
    """A part whose activations the backward pass recomputes; if `reentrant`, in a nested backward pass."""

    def __init__(self, part: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()  # otherwise a reentrant checkpoint has no backward pass
        y: torch.Tensor = recompute(self.part, x, use_reentrant=self.reentrant)
        return y


def recomputed_fsdp(*, reentrant: bool, sharded: str) -> list[float]:
    """Train with FSDP2 and activation checkpoints: shards within them, around them, or of every other block."""
    model = make_model()
    for number, block in enumerate(list(model[:2])):
        if sharded == "within":
            fully_shard(block)
        if sharded == "nested":
            block.up = Recomputed(block.up, reentrant=reentrant)
        model[number] = Recomputed(block, reentrant=reentrant)
        if sharded in ("around", "nested") or (sharded == "other" and number == 1):
            fully_shard(model[number])
    fully_shard(model)
    return train(model, dist.get_rank())


def tensor_parallel() -> list[float]:
    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[:2]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(model, 0)


def two_dimensional() -> list[float]:
    """Train with FSDP on one axis of a mesh and tensor parallelism on the other; with two ranks one axis has length
    one."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2) if size % 2 == 0 else (size, 1), mesh_dim_names=("data", "tensor"))
    model = make_model()
    for block in model[:2]:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return train(model, mesh.get_local_rank("data"))


def pipeline() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    parts = [model[:1], model[1:]] if size == 2 else [model[:1], model[1:2], *[nn.Identity()] * (size - 3), model[2:]]
    part = parts[rank]
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.cross_entropy)
    parameters = list(part.parameters())
    optimizer = torch.optim.SGD(parameters, 1e-1) if parameters else None
    losses = []
    for x, y in batches(0):
        if optimizer is not None:
            optimizer.zero_grad()
        of_parts: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=of_parts)
        else:
            schedule.step()
        if optimizer is not None:
            optimizer.step()
        losses += [loss.item() for loss in of_parts]
    return losses


def redistribution() -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(240.0).view(12, 20)
    x = distribute_tensor(whole, mesh, [Shard(0)])
    y: DTensor = (x @ distribute_tensor(whole.T.contiguous(), mesh, [Replicate()])).redistribute(mesh, [Shard(1)])
    assert torch.equal(y.full_tensor(), whole @ whole.T)
    odd = distribute_tensor(torch.arange(35.0).view(7, 5), mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    return [float(y.sum().full_tensor()), float(odd.full_tensor().sum())]


def saved_and_loaded() -> list[float]:
    """Save a sharded model in a distributed checkpoint, train on, load it, and train again."""
    model = make_model()
    fully_shard(model)
    train(model, dist.get_rank())
    folder = [tempfile.mkdtemp(prefix="hocket-test-")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0])
    losses = train(model, dist.get_rank())
    state = {"model": get_model_state_dict(model)}
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(model, state["model"])
    again = train(model, dist.get_rank())
    assert losses == again, (losses, again)
    return losses


def power_sgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


FORMS: dict[str, Callable[[], list[float]]] = {
    "ddp, all-reduce hook": lambda: ddp_with_hook(lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook)),
    "ddp, float16 hook": lambda: ddp_with_hook(lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook)),
    # With several buckets it hangs over gloo, whose threads wait for each other.
    "ddp, PowerSGD": lambda: ddp_with_hook(power_sgd, bucket_mb=25),
    "fsdp": fsdp,
    **{f"fsdp, {sharded}{' reentrant' * reentrant}": partial(recomputed_fsdp, reentrant=reentrant, sharded=sharded)
       for sharded in ("within", "around", "nested", "other") for reentrant in (False, True)},
    "tensor parallel": tensor_parallel,
    "fsdp and tensor parallel": two_dimensional,
    "pipeline": pipeline,
    "redistribution": redistribution,
    "checkpoint": saved_and_loaded,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    found = {}
    for name, form in FORMS.items():
        found[name] = form()
        dist.barrier()
    rank = dist.get_rank()
    Path(sys.argv[2], f"{sys.argv[1]}-{rank}.json").write_text(json.dumps(found))
    import gc

    gc.collect()
    dist.destroy_process_group()
    print(f"rank {rank} done")
