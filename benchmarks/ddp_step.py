"""Time of a training step under DistributedDataParallel: backend "hocket" against "gloo", two ranks.

Both backends are process groups of the same two processes; their steps alternate in random order. For both, the share
of communication is 1 - step without gradient exchange / step.
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
from claim import Options, PartResults, measure_jobs, run_claim
from libraries import job
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hocket.measure import Comparison, Contender, Measurement, computed, pin, serve
from hocket.measure.loops import Loop, looped

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "mnist_ddp"))
from train import digit_network  # the model of the demo

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


def digit_batch() -> Batch:
    """Return a batch with the shape of the demo; the values of the pixels do not affect the time."""
    return torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))


def text_batch() -> Batch:
    """Return a batch of byte sequences."""
    tokens_BS = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1))
    return tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].flatten()


MODELS = {"digit network": (digit_network, digit_batch), "small transformer": (SmallTransformer, text_batch)}


def gradients_agree(model: nn.Module) -> bool:
    """Return whether all ranks have the same gradients, as they must after a step with exchange."""
    mine = torch.cat([weights.grad.flatten() for weights in model.parameters()])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return bool(mine.abs().sum() > 0) and all(torch.equal(mine, other) for other in all_ranks)


def step_loop(model: DistributedDataParallel, batch: Batch, sync: bool) -> Loop:
    """Return a loop of whole training steps, with or without the exchange of gradients."""
    inputs, targets = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with nullcontext() if sync else model.no_sync():
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return looped(step)


def contenders() -> list[Contender]:
    """Return the steps of each model over each backend, with and without exchange; each is checked once."""
    groups = {backend: dist.new_group(backend=backend) for backend in ("hocket", "gloo")}
    found = []
    for case, (make, batch) in MODELS.items():
        for backend, group in groups.items():
            torch.manual_seed(0)
            model = DistributedDataParallel(make(), process_group=group)
            torch.manual_seed(1 + dist.get_rank())  # every rank has its own batch
            inputs = batch()
            synchronised = step_loop(model, inputs, sync=True)
            synchronised(3)  # DDP rebuilds its buckets after the first step
            if not gradients_agree(model):
                raise AssertionError(f"{case} over {backend}: the ranks have different gradients")
            found.append(Contender(case, f"{backend} step", synchronised))
            found.append(Contender(case, f"{backend} no_sync", step_loop(model, inputs, sync=False)))
    return found


def serve_rank(_: str) -> None:
    """Run one rank with both backends as two process groups of the same processes, each with its own model."""
    torch.set_num_threads(1)  # one core per rank
    dist.init_process_group("gloo")
    offered = contenders()
    pin(dist.get_rank())  # after the start, or hocket would assume that a bound rank shares its core
    serve(offered, dist.get_rank(), dist.barrier)
    del offered
    gc.collect()  # free the models, which keep the groups' threads alive
    dist.destroy_process_group()


def communication_shares(measurement: Measurement, case: str, backend: str) -> list[float]:
    """Return the share of communication in a step, by round: 1 - step without exchange / step."""
    times = (measurement.times(case, f"{backend} {what}") for what in ("no_sync", "step"))
    return [1 - alone / step for alone, step in zip(*times, strict=True)]


def parts(options: Options) -> PartResults:
    """Compare the steps, with a target, and the shares of communication, without a target."""
    measurement = measure_jobs([job("ddp", __file__, [], 2)], "DDP step, 2 ranks", options.settings)
    found = []
    for case in measurement.cases:
        ours, theirs = (median(communication_shares(measurement, case, backend)) for backend in ("hocket", "gloo"))
        found.append(Comparison(case, "hocket step", ("gloo step",), TARGET, label=f"{case}, DDP step"))
        found.append(computed(f"{case}, share of communication", "gloo", ours, theirs, "share"))
    yield found, measurement


if __name__ == "__main__":
    run_claim(
        "a DDP training step (batch 8 per rank, one thread a rank) over hocket is no slower than over gloo", parts
    )
