"""Train a small GPT on the text of Python's standard library, in two stages, with its embedding tied to its head.

hocket run -n 2 examples/train_gpt.py [STEPS]
"""

import math
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import hocket as hk
from hocket.train import LearningRate, fit

SEQUENCE, WIDTH, HEADS, LAYERS = 64, 128, 4, 4
STEPS, BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 1200, 16


class Block(nn.Module):
    """Causal attention, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x_BSW: torch.Tensor) -> torch.Tensor:
        q, k, v = self.queries_keys_values(self.norms[0](x_BSW)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed_BSW = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BSW = x_BSW + self.project(mixed_BSW)
        return x_BSW + self.feed_forward(self.norms[1](x_BSW))


class GPT(nn.Module):
    """Predicts each byte from the bytes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(SEQUENCE, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        nn.init.normal_(self.bytes.weight, std=0.2)
        self.head.weight = self.bytes.weight  # one matrix, used in the first and in the last stage

    def forward(self, text_BS: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.bytes(text_BS) + self.positions)))


def sequences(files: list[Path]) -> tuple[tuple[torch.Tensor, torch.Tensor], bytes]:
    """Return the inputs (sequences of bytes), the targets (shifted by one byte), and the whole text."""
    text = b"\n".join(path.read_bytes() for path in files)
    count = (len(text) - 1) // SEQUENCE
    values = torch.frombuffer(bytearray(text[: count * SEQUENCE + 1]), dtype=torch.uint8).long()
    return (values[:-1].view(count, SEQUENCE), values[1:].view(count, SEQUENCE)), text


torch.set_num_threads(1)
torch.manual_seed(0)
files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
(x, y), _ = sequences([path for number, path in enumerate(files) if number % 20])
(x_val, y_val), held_out = sequences(files[::20])

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.9 * step / STEPS))
with hk.init() as comm:
    history = fit(
        model,
        (x, y),
        loss=lambda logits, target: nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()),
        optimizer=optimizer,
        callbacks=[LearningRate(rate, by="step")],
        strategy="model",
        schedule="zb-h1",
        num_micro_batches=4,
        balance="flops",
        batch_size=BATCH,
        max_steps=STEPS,
        validation_data=(x_val[:512], y_val[:512]),
        comm=comm,
    )
    if comm.rank == 0:
        shares = [count / len(held_out) for count in Counter(held_out).values()]
        entropy = -sum(share * math.log2(share) for share in shares)
        learned = history.history["val_loss"][-1] / math.log(2)
        print(f"held-out text: {learned:.2f} bits per byte; entropy of single bytes: {entropy:.2f}")
