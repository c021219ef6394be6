"""Train two small models with DDP over the backend argv[1] and leave rank 0's and 1's losses in the folder argv[2]."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.classify = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x).flatten(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(self.embed(x)).mean(1))


def batch(name: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 10, (8,), generator=generator)
    if name == "convolutional":
        return torch.randn(8, 1, 12, 12, generator=generator), labels
    return torch.randint(0, 50, (8, 16), generator=generator), labels


def train(name: str, steps: int) -> list[float]:
    torch.manual_seed(7)
    model = Convolutional() if name == "convolutional" else Transformer()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets in a step
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        inputs, labels = batch(name, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    losses = {name: train(name, 50) for name in ("convolutional", "transformer")}
    Path(sys.argv[2], f"{sys.argv[1]}-{dist.get_rank()}.json").write_text(json.dumps(losses))
    gc.collect()  # DDP is in a reference cycle; if freed at interpreter exit, gloo's threads abort some processes
    dist.destroy_process_group()
