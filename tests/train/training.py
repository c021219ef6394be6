"""A small training that every rank runs, and the same training in one process without hocket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hocket.comm import Communicator
from hocket.train import Callback, Checkpoint, EarlyStopping, LearningRate, fit

FEATURES, CLASSES, SAMPLES, BATCH = 8, 3, 42, 12  # the last batch of an epoch has 6


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()),
        *(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES)),
    ).double()


def losses_of_one_process(epochs: int, limit: float | None = None) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in plain PyTorch: whole batches, in hocket's order; return losses and parameters."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    x, y = data()
    losses = []
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x[chosen]), y[chosen])
            loss.backward()
            if limit is not None:
                nn.utils.clip_grad_norm_(network.parameters(), limit)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    return losses, network.state_dict()


class Numbers(Callback):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_begin(self, trainer: Any) -> None:
        self.calls.append("begin")

    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        self.calls.append(f"step {step}")

    def on_epoch_end(self, trainer: Any, epoch: int, logs: Any) -> None:
        self.calls.append(f"epoch {epoch}: {', '.join(logs)}")

    def on_train_end(self, trainer: Any) -> None:
        self.calls.append("end")


def train(comm: Communicator, epochs: int = 3, how: str = "", **options: Any) -> dict[str, Any]:
    """Train; return losses and this rank's whole model."""
    torch.set_num_threads(1)
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    noted = Numbers()
    callbacks: list[Callback] = [LearningRate(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)), noted]
    if "folder" in options:
        callbacks.append(Checkpoint(Path(options.pop("folder")) / "after-{epoch}.pt"))
    if how == "stop early":
        callbacks.append(EarlyStopping("loss", mode="max"))
    given: Any = data()
    if how == "stream":
        given = Stream()
    history = fit(
        network,
        given,
        loss=F.cross_entropy,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=BATCH,
        validation_data=data(),
        metrics=["accuracy"],
        callbacks=callbacks,
        comm=comm,
        timeout=60,
        show_progress=False,
        **options,
    )
    return {
        "losses": history.batch_losses,
        "history": history.history,
        "state": network.state_dict(),
        "calls": noted.calls,
    }


class Stream:
    """Batches that only rank 0 may read."""

    def __init__(self) -> None:
        self._epoch = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        x, y = data()
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self._epoch))
        self._epoch += 1
        for chosen in order.split(BATCH):
            yield x[chosen], y[chosen]


def train_all(comm: Communicator, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train once for each of the cases."""
    return [train(comm, **case) for case in cases]
