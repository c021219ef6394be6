"""Time of a training step under DistributedDataParallel: backend "hocket" against "gloo", two ranks.

Both backends are process groups of the same two processes; their steps take turns in random order. The share of
communication is 1 - step without gradient exchange / step, for both alike.
"""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from claim import Found, Options, measured, run_claim
from libraries import job
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hocket.measure import Comparison, Contender, Measurement, computed, pin, serve
from hocket.measure.loops import Loop, looped

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "mnist_ddp"))
from train import digit_network  # the demo's model is the one that is timed

Batch = tuple[torch.Tensor, torch.Tensor]

TARGET = 1.0
BATCH = 8  # per rank
VOCABULARY, SEQUENCE, WIDTH = 256, 64, 128


class SmallTransformer(nn.Module):
    """Predicts the next of 64 bytes: 2 layers, width 128, 4 heads, 470 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(SEQUENCE, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQUENCE), persistent=False)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        hidden_BSW = self.layers(self.tokens(tokens_BS) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden_BSW).flatten(0, 1)


def digits() -> Batch:
    """A batch of the demo's shape; what the pixels show does not change the time."""
    return torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))


def text() -> Batch:
    """A batch of byte sequences."""
    tokens_BS = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1))
    return tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].flatten()


MODELS = {"digit network": (digit_network, digits), "small transformer": (SmallTransformer, text)}


def gradients_agree(model: nn.Module) -> bool:
    """Whether all ranks hold the same gradients, as they must after a step with exchange."""
    mine = torch.cat([weights.grad.flatten() for weights in model.parameters()])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return bool(mine.abs().sum() > 0) and all(torch.equal(mine, other) for other in all_ranks)


def steps(model: DistributedDataParallel, batch: Batch, sync: bool) -> Loop:
    """Whole training steps, with the exchange of gradients or without it."""
    inputs, targets = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with nullcontext() if sync else model.no_sync():
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return looped(step)


def contenders() -> list[Contender]:
    """Each model's step over each backend, with and without exchange; each checked once."""
    groups = {backend: dist.new_group(backend=backend) for backend in ("hocket", "gloo")}
    found = []
    for case, (make, batch) in MODELS.items():
        for backend, group in groups.items():
            torch.manual_seed(0)
            model = DistributedDataParallel(make(), process_group=group)
            torch.manual_seed(1 + dist.get_rank())  # every rank has its own batch
            inputs = batch()
            synchronised = steps(model, inputs, sync=True)
            synchronised(3)  # DDP rebuilds its buckets after the first step
            if not gradients_agree(model):
                raise AssertionError(f"{case} over {backend}: the ranks have different gradients")
            found.append(Contender(case, f"{backend} step", synchronised))
            found.append(Contender(case, f"{backend} no_sync", steps(model, inputs, sync=False)))
    return found


def serve_rank(_: str) -> None:
    """One rank: both backends in the same processes, as two process groups, each with its own model."""
    torch.set_num_threads(1)  # one core a rank
    dist.init_process_group("gloo")
    offered = contenders()
    pin(dist.get_rank())  # after hocket's start, which must not take a bound rank for one that shares its core
    serve(offered, dist.get_rank(), dist.barrier)
    del offered
    gc.collect()  # frees the models, which keep the groups' threads alive
    dist.destroy_process_group()


def shares(measurement: Measurement, case: str, backend: str) -> list[float]:
    """What communication takes of a step, by round: 1 - step without exchange / step."""
    times = (measurement.times(case, f"{backend} {what}") for what in ("no_sync", "step"))
    return [1 - alone / step for alone, step in zip(*times, strict=True)]


def parts(options: Options) -> Found:
    """The steps with a target, and the shares without."""
    measurement = measured([job("ddp", __file__, [], 2)], "DDP step, 2 ranks", options.settings)
    found = []
    for case in measurement.cases:
        ours, theirs = (median(shares(measurement, case, backend)) for backend in ("hocket", "gloo"))
        found.append(Comparison(case, "hocket step", ("gloo step",), TARGET, label=f"{case}, DDP step"))
        found.append(computed(f"{case}, share of communication", "gloo", ours, theirs, "share"))
    yield found, measurement


if __name__ == "__main__":
    run_claim(
        "a DDP training step (batch 8 per rank, one thread a rank) over hocket is no slower than over gloo", parts
    )
