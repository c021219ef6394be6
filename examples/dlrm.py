"""Train a recommendation model similar to DLRM to predict clicks, with its embedding tables on different ranks.

Every rank looks up its tables for the whole batch. all_to_all sends each rank the rows of its own samples while the
bottom MLP is computed, and returns the gradients of the rows while those of the bottom MLP are computed. The MLPs are
replicated on every rank; their gradients are all-reduced as the backward pass produces them. The clicks are synthetic:
random, with log-odds from products of hidden vectors of the categories. The result is the area under the ROC curve
(AUC) on held-out samples, beside the AUC of the true log-odds. After Naumov et al., arXiv 1906.00091.

    hocket run -n 2 examples/dlrm.py --steps 400
"""

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import hocket as hk
from hocket.trace.traffic import Traffic

# Shape suffixes: B samples, T tables, D dimension of an embedding, N numerical features of a sample, b B / ranks.
B, T, D, N, NUM_ROWS = 1024, 8, 16, 8, 100
HELD_OUT = 16384


class Clicks:
    """Synthetic samples: categories, numerical features, whether the sample is a click, and its true log-odds."""

    def __init__(self, seed: int) -> None:
        self.seed, truth = seed, np.random.default_rng([seed, 0])
        self.hidden, self.weights = truth.normal(0, 0.55, (T, NUM_ROWS, 4)), truth.normal(0, 0.3, N)

    def draw(self, stream: int, num_samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
        """Return categories (T, B), numbers (B, N), clicks (B,) and log-odds (B,), all determined by `stream`."""
        random = np.random.default_rng([self.seed, stream])
        categories = (NUM_ROWS * random.random((T, num_samples)) ** 2).astype(np.int64)  # skewed: some are frequent
        numbers = random.normal(size=(num_samples, N)).astype(np.float32)
        vectors = self.hidden[np.arange(T)[:, None], categories]
        pairs = (vectors.sum(0) ** 2 - (vectors**2).sum(0)).sum(-1) / 2  # sum over all pairs of tables
        log_odds = pairs + numbers @ self.weights - 1
        clicks = random.random(num_samples) < 1 / (1 + np.exp(-log_odds))
        return torch.from_numpy(categories), torch.from_numpy(numbers), torch.from_numpy(clicks).float(), log_odds


def area_under_curve(score: np.ndarray, clicked: np.ndarray) -> float:
    """Return the probability that a click scores above a non-click (from the rank sum; a tie counts one half)."""
    _, position, count = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[position]
    num_clicks = clicked.sum()
    return float((ranks[clicked > 0].mean() - (num_clicks + 1) / 2) / (len(clicked) - num_clicks))


class Step:
    """One step's operations in flight, and the times that a record of its traffic needs."""

    def __init__(self, comm: hk.Communicator) -> None:
        self.comm, self.since_ns, self.waited, self.reductions = comm, time.monotonic_ns(), [], []

    def send(self, x: torch.Tensor) -> torch.Tensor:
        """Start to send row r of the first axis to rank r; return the array that `receive` completes."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self.exchange = self.comm.all_to_all(out, x, async_op=True)
        return out

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        self.wait(self.exchange)
        return x.view_as(x)

    def wait(self, work: hk.Work) -> None:
        self.waited.append((time.monotonic_ns(), work.seq))
        work.wait()


class ExchangeEnd(torch.autograd.Function):
    """One end of an exchange: the first starts it, the second waits for it; reversed in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, step: Step, sends: bool) -> torch.Tensor:
        context.step, context.sends = step, sends
        return step.send(x) if sends else step.receive(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        back = context.step.receive if context.sends else context.step.send
        return back(gradient), None, None


def mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(widths[:-1])]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


class DLRM(nn.Module):
    """Embeddings of categories, a bottom MLP for numbers, dot products of all pairs, and a top MLP."""

    def __init__(self, comm: hk.Communicator) -> None:
        super().__init__()
        self.step, self.mine = Step(comm), slice(comm.rank * T // comm.size, (comm.rank + 1) * T // comm.size)
        self.tables = nn.Parameter((torch.randn(T, NUM_ROWS, D) * 0.25)[self.mine].clone())
        self.bottom, self.top = mlp(N, 64, D), mlp((T + 1) * T // 2 + D, 64, 32, 1)

    def forward(self, categories_TB: torch.Tensor, numbers_bN: torch.Tensor) -> torch.Tensor:
        """Return the log-odds of this rank's samples b, from the categories of all samples B."""
        mine = categories_TB[self.mine]
        rows = self.tables[torch.arange(len(mine))[:, None], mine].unflatten(1, (self.step.comm.size, -1))
        sent = ExchangeEnd.apply(rows.transpose(0, 1), self.step, True)
        bottom_bD = self.bottom(numbers_bN)
        rows_TbD = ExchangeEnd.apply(sent, self.step, False).flatten(0, 1)
        vectors = torch.cat([bottom_bD[None], rows_TbD]).transpose(0, 1)
        products = (vectors @ vectors.transpose(1, 2))[:, *torch.triu_indices(T + 1, T + 1, 1)]
        return self.top(torch.cat([bottom_bD, products], 1))[:, 0]


class Gradients:
    """The gradients of one MLP in one buffer, all-reduced as soon as the last gradient is computed."""

    def __init__(self, model: DLRM, network: nn.Module) -> None:
        self.model, sizes = model, [each.numel() for each in network.parameters()]
        self.flat = model.step.comm.zeros(sum(sizes), torch.float32)  # shared memory of the host's ranks: no copies
        self.num_missing = self.num_parameters = len(sizes)
        for each, part in zip(network.parameters(), self.flat.split(sizes), strict=True):
            each.grad = part.view_as(each)
            each.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, _: torch.Tensor) -> None:
        self.num_missing -= 1
        if self.num_missing == 0:
            step, self.num_missing = self.model.step, self.num_parameters
            step.reductions.append(step.comm.all_reduce(self.flat, "avg", async_op=True))


def predict(comm: hk.Communicator, model: DLRM, categories: torch.Tensor, numbers: torch.Tensor) -> np.ndarray:
    """Return the log-odds of all samples on every rank; each rank computes its share."""
    log_odds = torch.empty(comm.size, len(numbers) // comm.size)
    with torch.no_grad():
        comm.all_gather(log_odds, model(categories, numbers.chunk(comm.size)[comm.rank]))
    return log_odds.flatten().numpy()


def train(comm: hk.Communicator, options: argparse.Namespace) -> dict[str, object]:
    """Train from scratch; the result is the same on all ranks."""
    torch.manual_seed(options.seed)
    clicks, model = Clicks(options.seed), DLRM(comm)
    networks = nn.ModuleList([model.bottom, model.top])
    for network in networks:
        Gradients(model, network)
    optimizers = torch.optim.SGD([model.tables], lr=40), torch.optim.Adam(networks.parameters(), lr=3e-3)
    *held_out, clicked, truth = clicks.draw(1, HELD_OUT)
    scores = {"auc_before": predict(comm, model, *held_out)}
    losses = torch.zeros(options.steps)
    for index in range(options.steps):
        categories, *rest, _ = clicks.draw(2 + index, B)
        numbers, targets = (each.chunk(comm.size)[comm.rank] for each in rest)
        step = model.step = Step(comm)
        model.zero_grad(set_to_none=False)  # keeps the gradients in the buffer that is reduced
        loss = F.binary_cross_entropy_with_logits(model(categories, numbers), targets)
        loss.backward()
        model.tables.grad /= comm.size  # it is the sum over all ranks' losses; we need the mean
        for work in step.reductions:
            step.wait(work)
        for optimizer in optimizers:
            optimizer.step()
        losses[index] = loss.detach()
    if options.traffic and comm.rank == 0:
        context = {"source": "examples/dlrm.py, rank 0", "since_ns": step.since_ns, "waited": step.waited}
        Traffic.from_records(comm.records(), name="dlrm", num_ranks=comm.size, **context).save(options.traffic)
    comm.all_reduce(losses, "avg")
    scores |= {"auc_after": predict(comm, model, *held_out), "auc_truth": truth}
    areas = {name: area_under_curve(score, clicked.numpy()) for name, score in scores.items()}
    return {"example": "dlrm", "ranks": comm.size, **areas, "losses": losses.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the result and all losses as one JSON object")
    parser.add_argument("--traffic", type=Path, help="write the operations of the last step to this file, for replay")
    options = parser.parse_args()
    torch.set_num_threads(1)  # one core per rank
    with hk.init() as comm:
        if options.steps < 1 or T % comm.size:
            parser.error(
                f"--steps must be above 0 (got {options.steps}), and {comm.size} ranks must divide {T} tables evenly"
            )
        result = train(comm, options)
        if comm.rank == 0:
            text = "held-out AUC: {auc_before:.3f} before, {auc_after:.3f} after {steps} steps; ideal: {auc_truth:.3f}"
            print(json.dumps(result) if options.json else text.format(**result, steps=options.steps))


if __name__ == "__main__":
    main()
