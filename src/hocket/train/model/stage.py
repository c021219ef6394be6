"""One stage of a model: which values go in and come out, and what an executor has to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from hocket.train.model.specs import Inferred, ValueSpec


class Stage(ABC):
    """A part of a model. Values are named; what a value is (a tensor, a number, or a tree of them) its maker decides.

    Args:
        inputs: names of values, of earlier stages or of the batch.
        outputs: names of values that later stages, or the user of the model, want.
    """

    def __init__(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs

    @abstractmethod
    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the values of `outputs` from those of `inputs`."""

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return its parameters by their names in the whole model, each once."""

    @abstractmethod
    def buffers(self) -> dict[str, torch.Tensor]:
        """Return what it keeps besides parameters, such as running statistics, by name in the whole model."""

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Have it compute as in training, or as in evaluation."""

    @abstractmethod
    def seed(self, key: int) -> None:
        """Have random numbers depend on `key` alone, from here on."""

    @abstractmethod
    def infer(self, inputs: Sequence[ValueSpec], what: str) -> Inferred:
        """Return what its outputs look like where its inputs look so, without computing them.

        Raises:
            InvalidModel: that depends on the content of the inputs; `what` is what the stage is called.
        """

    @abstractmethod
    def with_buffers_kept(self) -> AbstractContextManager[None]:
        """Run it without a lasting effect on its buffers: for a forward pass that is done again."""

    def extra_loss(self) -> torch.Tensor | None:
        """Return what the latest call adds to the loss of its micro-batch, such as that of regularizers."""
        return None
