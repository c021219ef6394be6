"""One rank of ddp_step.py: both backends in the same processes, as two process groups, each with its own model."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hocket.measure import Contender, pin, serve

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "mnist_ddp"))
from train import digit_network  # the demo's model is the one that is timed

Batch = tuple[torch.Tensor, torch.Tensor]

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


def steps(
    model: DistributedDataParallel, batch: tuple[torch.Tensor, torch.Tensor], sync: bool
) -> Callable[[int], None]:
    """Whole training steps, with the exchange of gradients or without it."""
    inputs, targets = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            with nullcontext() if sync else model.no_sync():
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return run


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


def main() -> None:
    torch.set_num_threads(1)  # one core a rank
    dist.init_process_group("gloo")
    offered = contenders()
    pin(dist.get_rank())  # after hocket's start, which must not take a bound rank for one that shares its core
    serve(offered, dist.get_rank(), dist.barrier)
    del offered
    gc.collect()  # frees the models, which keep the groups' threads alive
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
