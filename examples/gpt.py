"""Train a small GPT on characters of Python's standard library, with a sharded optimizer (ZeRO stage 2).

Every layer's parameters lie in one flat buffer. As soon as the backward pass has computed a layer's gradients, they are
reduce-scattered while the pass continues. Every rank keeps Adam's state for its own shard only, updates this shard and
gathers the others. The result is the number of bits per character on held-out text.

    hocket run -n 2 examples/gpt.py
    hocket run -n 2 examples/gpt.py --steps 50 --json --traffic gpt.json
"""

import argparse
import json
import math
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import hocket as hk
from hocket.trace.traffic import Traffic

# Shape suffixes: B sequences, T characters of a sequence, D width, C distinct characters.
B, T, D, C = 16, 64, 96, 128
NUM_LAYERS, NUM_HEADS = 2, 4
FILES = ("argparse.py", "ast.py", "dataclasses.py", "inspect.py", "subprocess.py", "tarfile.py", "typing.py")


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the characters for training (the first 90 % of every file) and for testing (the rest)."""
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for name in FILES:
        text = Path(sysconfig.get_path("stdlib"), name).read_text(encoding="utf-8")
        codes = torch.tensor(list(text.encode("ascii", "replace")))
        for part, piece in zip(parts, codes.tensor_split([len(codes) * 9 // 10]), strict=True):
            part.append(piece)
    return torch.cat(parts[0]), torch.cat(parts[1])


def windows(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of T characters, and for each character the next one."""
    pieces = text[starts[:, None] + torch.arange(T + 1)]
    return pieces[:, :-1], pieces[:, 1:]


class Block(nn.Module):
    """Attention to earlier characters, then a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)])
        self.query_key_value, self.project = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.feed_forward = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        heads = self.query_key_value(self.norms[0](x_BTD)).unflatten(-1, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        x_BTD = x_BTD + self.project(mixed.transpose(1, 2).flatten(2))
        return x_BTD + self.feed_forward(self.norms[1](x_BTD))


class GPT(nn.Module):
    """Predicts each character from the characters before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(C, D), nn.Embedding(T, D)])
        self.blocks = nn.ModuleList([Block() for _ in range(NUM_LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, C))

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embeddings[0](x_BT) + self.embeddings[1](torch.arange(x_BT.shape[1]))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(x_BTD)


class Step:
    """The times that a record of a step's traffic needs: its start, and the start of each wait for an operation."""

    def __init__(self) -> None:
        self.since_ns, self.waited = time.monotonic_ns(), []

    def wait(self, work: hk.Work) -> None:
        self.waited.append((time.monotonic_ns(), work.seq))
        work.wait()


class Bucket:
    """The parameters of one layer in one buffer, one row per rank; this rank updates its own row.

    The buffer lies in shared memory, where the ranks of a host gather and reduce without copies.
    """

    def __init__(self, comm: hk.Communicator, layer: nn.Module) -> None:
        self.comm, parameters = comm, list(layer.parameters())
        width = math.ceil(sum(each.numel() for each in parameters) / comm.size)
        self.values, self.gradients = comm.zeros((2, comm.size, width), torch.float32)
        begin = 0
        for each in parameters:
            part = slice(begin, begin := begin + each.numel())
            self.values.view(-1)[part] = each.detach().flatten()
            each.data = self.values.view(-1)[part].view_as(each)
            each.grad = self.gradients.view(-1)[part].view_as(each)
            each.register_post_accumulate_grad_hook(self.on_gradient)
        self.num_missing = self.num_parameters = len(parameters)
        self.shard = nn.Parameter(self.values[comm.rank])
        self.shard.grad = torch.zeros(width)
        self.adam = torch.optim.Adam([self.shard])

    def on_gradient(self, _: torch.Tensor) -> None:
        """Start the reduce_scatter as soon as the last gradient is computed."""
        self.num_missing -= 1
        if self.num_missing == 0:
            self.scattered = self.comm.reduce_scatter(self.shard.grad, self.gradients, "avg", async_op=True)

    def update(self, step: Step, learning_rate: float) -> hk.Work:
        """Update this rank's row and start to gather all rows."""
        step.wait(self.scattered)
        self.num_missing = self.num_parameters
        self.gradients.zero_()
        self.adam.param_groups[0]["lr"] = learning_rate
        self.adam.step()
        return self.comm.all_gather(self.values, self.values[self.comm.rank], async_op=True)


def bits_per_character(comm: hk.Communicator, model: GPT, text: torch.Tensor) -> float:
    """Return the bits per character over 256 windows spread over the text; every rank evaluates its share."""
    starts = torch.linspace(0, len(text) - T - 1, 256).long()[comm.rank :: comm.size]
    inputs, targets = windows(text, starts)
    with torch.no_grad():
        total = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").double()
    comm.all_reduce(total)
    return total.item() / (256 * T) / math.log(2)


def train(comm: hk.Communicator, num_steps: int, seed: int, traffic: Path | None) -> dict[str, object]:
    """Train from scratch; the result is the same on all ranks."""
    torch.manual_seed(seed)
    train_text, test_text = load_text()
    model = GPT()
    buckets = [Bucket(comm, layer) for layer in (model.head, *reversed(model.blocks), model.embeddings)]
    bits_before = bits_per_character(comm, model, test_text)
    losses = torch.zeros(num_steps)
    for index in range(num_steps):
        starts = torch.randint(len(train_text) - T, (B,))  # equal on all ranks; each rank takes its share
        inputs, targets = windows(train_text, starts.chunk(comm.size)[comm.rank])
        step = Step()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        learning_rate = 6e-3 * min(1, (index + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * index / num_steps))
        for work in [bucket.update(step, learning_rate) for bucket in buckets]:
            step.wait(work)
        losses[index] = loss.detach()
    if traffic and comm.rank == 0:
        context = {"source": "examples/gpt.py, rank 0", "since_ns": step.since_ns, "waited": step.waited}
        Traffic.from_records(comm.records(), name="gpt", num_ranks=comm.size, **context).save(traffic)
    comm.all_reduce(losses, "avg")
    return {
        "example": "gpt",
        "ranks": comm.size,
        "parameters": sum(each.numel() for each in model.parameters()),
        "bits_before": bits_before,
        "bits_after": bits_per_character(comm, model, test_text),
        "losses": losses.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the result and all losses as one JSON object")
    parser.add_argument("--traffic", type=Path, help="write the operations of the last step to this file, for replay")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one core per rank
    with hk.init() as comm:
        if args.steps < 1 or B % comm.size:
            parser.error(
                f"--steps must be above 0 (got {args.steps}), and {comm.size} ranks must divide {B} sequences evenly"
            )
        result = train(comm, args.steps, args.seed, args.traffic)
        if comm.rank == 0:
            text = "held-out text: {bits_before:.3f} bits per character before, {bits_after:.3f} after {steps} steps"
            print(json.dumps(result) if args.json else text.format(**result, steps=args.steps))


if __name__ == "__main__":
    main()
