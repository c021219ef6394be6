"""Time until a training between two hosts has a loss, by the way in which its gradients are compressed.

A perceptron of 1.9 million parameters learns 4,000 handwritten digits on one rank of each host of the laboratory,
DistributedDataParallel over hocket and over gloo. For each seed all ways run one after the other, from the same weights
and with the same order of samples. Every 20 steps the clock is stopped, and the loss on 1,000 other digits computed. A
table has the time until a loss; a picture has the losses by time, the median of the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lab import Lab
from sparse_training import NUM_TESTED, digits, loss_of
from torch import nn

import hocket as hk
from hocket.measure import pin
from hocket.measure.pictures import COLORS, check_picture_path, load_pyplot

OVER_GLOO, DENSE = "dense, gloo", "dense, hocket"
WAYS = (OVER_GLOO, DENSE, "ok-topk(density=0.01)", "power-sgd(rank=4)", "qsgd(levels=127)", "one-bit(group=1024)")
WIDTH, BATCH_SIZE, RATE, NUM_STEPS, BETWEEN = 1024, 100, 0.1, 240, 20
DEADLINE_S = 1500.0


def train(way: str, seed: int, group: dist.ProcessGroup, x: torch.Tensor, y: torch.Tensor) -> list[tuple[float, float]]:
    """Return the seconds of training, and the loss, after every 20 steps."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = nn.parallel.DistributedDataParallel(network, process_group=group)
    if way not in (OVER_GLOO, DENSE):
        model.register_comm_hook(*hk.torch.compressed(way, group=group, dense_steps=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    num_trained = len(x) - NUM_TESTED
    batches: list[torch.Tensor] = []
    seconds, found = 0.0, []
    for step in range(NUM_STEPS + 1):
        if step % BETWEEN == 0:
            with torch.no_grad():
                found.append((seconds, loss_of(network, x[num_trained:], y[num_trained:])))
            dist.barrier(group)
        begin = time.perf_counter()
        if not batches:
            batches = list(torch.randperm(num_trained, generator=generator).split(BATCH_SIZE))
        own = batches.pop(0)[dist.get_rank() :: dist.get_world_size()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
        seconds += time.perf_counter() - begin
    return found


def serve_rank(num_seeds: int) -> None:
    """Run one rank; rank 0 prints what it finds."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # by the name of a host gloo would find its loopback device
    dist.init_process_group("hocket")
    pin(dist.get_rank())
    groups = {True: dist.new_group(backend="gloo"), False: dist.new_group(backend="hocket")}
    x, y = digits()
    for seed in range(num_seeds):
        for way in WAYS:
            curve = train(way, seed, groups[way == OVER_GLOO], x, y)
            if dist.get_rank() == 0:
                print(json.dumps({"seed": seed, "way": way, "curve": curve}), flush=True)
    dist.destroy_process_group()


def curves_of(rate_gbit_s: float, num_seeds: int) -> dict[str, np.ndarray]:
    """Return for each way (seed, point, seconds and loss)."""
    with Lab(rate_gbit_s) as lab:
        argv = [sys.executable, __file__, "--rank", "--seeds", str(num_seeds)]
        started = [
            subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **world}, stdout=subprocess.PIPE)
            for command, world in lab.rank_commands(argv, 1)
        ]
        outputs = [each.communicate(timeout=DEADLINE_S)[0] for each in started]
    if any(each.returncode for each in started):
        raise SystemExit("a rank failed")
    rows = [json.loads(line) for line in outputs[0].splitlines()]
    return {way: np.array([row["curve"] for row in rows if row["way"] == way]) for way in WAYS}


def time_to(curve: np.ndarray, loss: float) -> float:
    """Return the seconds until a loss is reached, between two points by a line; infinity if it is not."""
    for (begin, above), (end, below) in pairwise(curve):
        if below <= loss < above:
            return float(begin + (end - begin) * (above - loss) / (above - below))
    return float("inf")


def rows_of(curves: dict[str, np.ndarray], losses: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "way": way,
            "step_ms": 1e3 * median(curve[:, -1, 0] / NUM_STEPS),
            "last_loss": median(curve[:, -1, 1]),
            "seconds_to": {f"{loss:g}": median(time_to(each, loss) for each in curve) for loss in losses},
        }
        for way, curve in curves.items()
    ]


def draw(curves: dict[str, np.ndarray], rate_gbit_s: float, path: Path) -> None:
    """Draw the losses by time."""
    figure, axes = load_pyplot().subplots(figsize=(7, 4), layout="constrained")
    for color, (way, curve) in zip(("grey", *COLORS), curves.items(), strict=False):
        seconds, losses = np.median(curve, axis=0).T
        axes.plot(seconds, losses, color=color, label=way, marker="o", markersize=2.5, linewidth=1.5)
    axes.set_yscale("log")
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("loss on digits that are not trained")
    axes.set_title(f"two hosts, {rate_gbit_s:g} Gbit/s; a point every {BETWEEN} steps", size=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rate", type=float, default=1.0, help="of the link, in Gbit/s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loss", type=float, action="append", help="may be repeated")
    parser.add_argument("--picture", type=Path, help="where to draw")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        serve_rank(options.seeds)
        return
    if options.picture is not None:
        check_picture_path(options.picture)
    curves = curves_of(options.rate, options.seeds)
    rows = rows_of(curves, options.loss or (0.6, 0.4))
    for row in rows:
        times = ", ".join(f"loss {loss} after {seconds:.2f} s" for loss, seconds in row["seconds_to"].items())
        print(f"{row['way']}: {row['step_ms']:.1f} ms a step, {times}, at the end {row['last_loss']:.3f}")
    if options.picture is not None:
        draw(curves, options.rate, options.picture)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
