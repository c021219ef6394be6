"""Measure step time and the share of communication of gloo and hocket, in the same processes, in interleaved rounds.

    hocket run -n 2 examples/mnist_ddp/compare.py --out timing.json

The default process group uses gloo, a second group over the same ranks uses hocket; each has its own replica of the
network of train.py. The learning rate is 0, so all variants compute the same steps, whatever their number and order.
"""

import argparse
import gc
import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from results import BACKENDS, Estimate, Timing
from torch.nn.parallel import DistributedDataParallel
from train import digit_network, load_digits

from hocket import measure
from hocket.measure.comparison import MAX_FOREIGN_BUSY

BATCH = 8
SAMPLE_S = 0.05
CASE = "training step"


def training_step(group: dist.ProcessGroup, exchange: bool) -> Callable[[], None]:
    """Return a function that runs one training step on a process group, with or without gradient exchange."""
    torch.manual_seed(0)
    model = DistributedDataParallel(digit_network(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    images, labels = (part[dist.get_rank() :: dist.get_world_size()].split(BATCH) for part in load_digits()[0].tensors)
    batches = itertools.cycle(zip(images, labels, strict=True))

    def step() -> None:
        image, label = next(batches)
        with nullcontext() if exchange else model.no_sync():
            optimizer.zero_grad()
            F.cross_entropy(model(image), label).backward()
        optimizer.step()

    return step


def gather(values: list[float]) -> list[list[float]]:
    """Gather the values of every rank over gloo, in rank order."""
    mine = torch.tensor(values, dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [row.tolist() for row in everyone]


def time_rounds(num_rounds: int) -> measure.Measurement:
    """Time all variants with hocket's timing engine, the first one twice per round to show the noise."""
    groups = {"gloo": dist.group.WORLD, "hocket": dist.new_group(backend="hocket")}
    contenders = [
        measure.Contender.of_call(CASE, f"{name}{suffix}", training_step(groups[name], exchange))
        for name in BACKENDS
        for suffix, exchange in (("", True), (" no_sync", False))
    ]
    team = measure.Team(contenders, dist.get_rank(), dist.barrier, gather)
    settings = measure.Settings(min_rounds=num_rounds, min_sample_s=SAMPLE_S, core_rounds=0, time_limit_s=120)
    with measure.progress("timing") if dist.get_rank() == 0 else nullcontext() as on_round:
        return measure.measure(team, settings, on_round=on_round)


def evaluate(measured: measure.Measurement) -> Timing:
    """Return medians and their intervals over the rounds; ratios and shares are computed within each round."""
    names = sorted({key.name for round_ in measured.rounds for key in round_.seconds})
    times_ms = {name: [round_.seconds[measure.Key(CASE, name)] * 1e3 for round_ in measured.rounds] for name in names}

    def estimate(values: list[float]) -> Estimate:
        return Estimate(median(values), *measure.median_interval(values))

    def share(name: str) -> Estimate:
        return estimate(
            [1 - no_sync / step for no_sync, step in zip(times_ms[f"{name} no_sync"], times_ms[name], strict=True)]
        )

    return Timing(
        step_ms={name: estimate(times_ms[name]) for name in BACKENDS},
        no_sync_ms={name: estimate(times_ms[f"{name} no_sync"]) for name in BACKENDS},
        share={name: share(name) for name in BACKENDS},
        speed_up={"hocket": measure.ratio(times_ms["hocket"], times_ms["gloo"])},
        rounds_ms=times_ms,
        sample_ms=SAMPLE_S * 1e3,
        core_factor=measured.core_factor,
        foreign_busy=measured.foreign_busy,
        too_busy=measured.foreign_busy > MAX_FOREIGN_BUSY,
        null_ratio=measure.ratio(times_ms["gloo (again)"], times_ms["gloo"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--out", type=Path, required=True, help="write the result to this file, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    timing = evaluate(time_rounds(args.rounds))
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(asdict(timing)))
    gc.collect()  # as in train.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
