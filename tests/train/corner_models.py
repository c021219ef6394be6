"""Models and datasets for which a pipeline could easily differ from plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

WIDTH = 4


class Transposed(nn.Module):
    """A value that is not contiguous, and is summed over."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(48, 48), nn.Linear(40, 48), nn.LayerNorm(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).transpose(-1, -2)
        return self.norm(self.b(h).relu().mean(-2, keepdim=True)) + h.sum(-1).unsqueeze(-2)


class AddedWeights(nn.Module):
    """Weights whose gradients autograd returns as one tensor, also that of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.a, self.b, self.shift = (nn.Parameter(torch.full((size, WIDTH), 0.5)) for size in (1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(((self.first(x) + self.shift) * (self.a + self.b)).relu() + self.shift)


class Aside(nn.Module):
    """An output with an infinite derivative that the loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.aside, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        aside = self.aside(x).relu().sqrt()
        return self.b(self.a(x).relu()), aside


class Residual(nn.Sequential):
    """A chain that defines its own forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Largest(nn.Module):
    """Values with names, and numbers, that cross cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(2, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        size = h.size(0)
        found = torch.topk(h, 2, -1)
        return self.b(found.values).view(size, -1) * size + found.indices.sum(-1, keepdim=True)


class Masked(nn.Module):
    """Buffers with infinities, and complex buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((WIDTH, WIDTH), float("-inf")).triu(1))
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h = torch.softmax(h.unsqueeze(-1) * h.unsqueeze(-2) + self.mask, -1).sum(-1)
        h = torch.view_as_real(torch.view_as_complex(h.reshape(-1, 2, 2)) * self.turn).flatten(1)
        return self.b(h)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class ClampsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.clamp_(min=0)
        h = self.a(x)
        return self.b(h) + x


class WritesToView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h.view(-1, WIDTH).mul_(3)
        return self.b(h)


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.b(self.norm(self.a(x))))


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) + torch.randn(WIDTH))


class NumpyNoisy(Noisy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) * np.random.rand())


class Teacher(nn.Module):
    """A model with a part that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.b(x)
        return self.a(x) - wanted


class HalfPrecise(Teacher):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.a(x)
        return self.b(h.float())


class Hooked(Teacher):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, inputs, output: output * 2)


class HookedByItself(Teacher):
    """Registers a hook on itself at its first call, which is the trace: the hook does not exist before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._forward_hooks:
            self.register_forward_hook(lambda module, inputs, output: output * 2)
        return self.b(torch.relu(self.a(x)))


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Signs(nn.Module):
    """The sign, with its own backward pass, which returns the gradient unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(_Through.apply(self.a(x)))


class Checkpointed(Teacher):
    """Recomputes a part in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(lambda h: torch.tanh(self.a(h)), x * 2, use_reentrant=True))


class OfBuffer(nn.Module):
    """Takes a value that is computed from a buffer, and has a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("turn", torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(torch.sin(x @ (self.turn * 2)))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.a(x)


class OtherInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.b(self.a(x))
        return h if self.training else torch.softmax(h, -1)


class Short(nn.Module):
    """A model whose code depends on lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 64:
            raise ValueError("too long")
        return self.b(self.a(x).sum(1) / x.shape[1])


class Jittered(Dataset[Any]):
    """Samples that differ in every read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((WIDTH,), float(number)) + torch.randn(WIDTH)
        return x, x.sum(0, keepdim=True)


class Images(nn.Sequential):
    """Normalisation over samples and positions."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(WIDTH), nn.Flatten(), nn.Linear(3 * WIDTH, WIDTH))


class OtherBranch(nn.Module):
    """The same operations with other inputs in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x)
        return self.head(a if self.training else b) + a + b
