"""What a parameter server gets of a Keras optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PartVariable:
    """A trained variable.

    Args:
        path: its path, by which some optimizers choose what they do.
        value: its value.
        slots: the optimizer's variables for it, by attribute.
        decays: whether weight decay applies to it.
    """

    path: str
    value: torch.Tensor
    slots: Mapping[str, torch.Tensor | None]
    decays: bool


@dataclass(frozen=True)
class KerasPart:
    """The part of a Keras optimizer for one server.

    Args:
        kind: name of a class of `keras.optimizers`.
        config: its configuration, as JSON.
        settings: see `KerasServedOptimizer.settings`.
        variables: the server's variables, by the tensors' numbers.
        parcels: numbers of the tensors whose gradients are applied together.
        num_steps: number of steps that the optimizer has made.
        product: Nadam's product of momentums; None: another optimizer.
        floatx: Keras' default type of floats.
    """

    kind: str
    config: str
    settings: str
    variables: Mapping[int, PartVariable]
    parcels: Sequence[Sequence[int]]
    num_steps: int
    product: float | None
    floatx: str
