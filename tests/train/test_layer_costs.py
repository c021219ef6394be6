"""The measurement of layers one by one: their inputs, and the memory that they keep."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from hocket.train import graph_of, profile_layers

pytestmark = pytest.mark.timeout(60)

SAMPLES, WIDE, NARROW = 7, 13, 11


class Wants(torch.autograd.Function):
    """Records whether its input needs a gradient."""

    noted: list[bool]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        Wants.noted.append(ctx.needs_input_grad[0])
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        return gradient if ctx.needs_input_grad[0] else None, gradient.sum()


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Wants.apply(x, self.weight)


def test_nothing_is_left_of_what_was_measured() -> None:
    model = nn.Sequential(nn.Linear(8, WIDE), nn.Tanh(), nn.Linear(WIDE, NARROW), nn.Sigmoid())
    costs = profile_layers(graph_of(model), {"input": torch.randn(SAMPLES, 8)})
    assert [each.activation_nbytes > 0 for each in costs] == [True] * 4
    gc.collect()
    shapes = {(SAMPLES, WIDE), (SAMPLES, NARROW)}
    assert not [each for each in gc.get_objects() if type(each) is torch.Tensor and tuple(each.shape) in shapes]


def test_gradients_are_measured_where_a_training_has_them() -> None:
    Wants.noted = []
    profile_layers(graph_of(nn.Sequential(Scale(), Scale())), {"input": torch.randn(4)}, repeats=1)
    assert Wants.noted == [False, False, True, True]  # data need no gradient; the output of a layer with weights does


def test_what_a_split_backward_pass_keeps() -> None:
    model = nn.Sequential(nn.Linear(8, WIDE), nn.Linear(WIDE, NARROW))
    first, second = profile_layers(graph_of(model), {"input": torch.randn(SAMPLES, 8)})
    # The gradient of a linear layer's weights needs only its input and the incoming gradient.
    assert (first.kept_gradient_nbytes, second.kept_gradient_nbytes) == (SAMPLES * WIDE * 4, SAMPLES * NARROW * 4)
