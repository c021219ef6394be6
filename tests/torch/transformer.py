"""Train a Llama of the transformers library over the backend argv[1]; write this rank's losses to argv[2]."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, STEPS = 4, 24, 12


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=LENGTH, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


def train(model: torch.nn.Module, data_rank: int, *, clips: bool = True) -> list[float]:
    """Train the model to count."""
    generator = torch.Generator().manual_seed(1 + data_rank)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        tokens = (torch.randint(128, (BATCH, 1), generator=generator) + torch.arange(LENGTH)) % 128
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp() -> list[float]:
    return train(DistributedDataParallel(make_model(), bucket_cap_mb=0.05), dist.get_rank())


def fsdp() -> list[float]:
    model = make_model()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return train(model, dist.get_rank())


def tensor_parallel() -> list[float]:
    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        plan = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
        plan |= {
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)
    return train(model, 0, clips=False)  # torch has no norm over sharded and unsharded parameters together


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    found = {}
    for form in (ddp, fsdp, tensor_parallel):
        found[form.__name__] = form()
        dist.barrier()
    assert all(losses[-1] < losses[0] for losses in found.values()), found
    Path(sys.argv[2], f"{sys.argv[1]}-{dist.get_rank()}.json").write_text(json.dumps(found))
    import gc

    gc.collect()
    dist.destroy_process_group()
    print("done")
