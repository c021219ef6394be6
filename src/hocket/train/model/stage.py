"""The interface of a stage of a model, as the executor uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from hocket.train.model.specs import Inferred, ValueSpec


class Stage(ABC):
    """A part of a model, which takes and returns named values: tensors, numbers, or trees of them.

    Args:
        inputs: names of values of earlier stages or of the batch.
        outputs: names of values that later stages take or the model returns.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)))
        >>> stage = graph.split([0, 1, 2]).stages[0]
        >>> stage.inputs, stage.outputs, list(stage.parameters())
        (('input',), ('output of 0',), ['0.weight', '0.bias'])
        >>> stage([torch.ones(3, 2)])[0].shape
        torch.Size([3, 4])
    """

    def __init__(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs

    @abstractmethod
    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the values of `outputs` from those of `inputs`."""

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the stage's parameters by their names in the whole model, each once."""

    @abstractmethod
    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the stage's other tensors, such as running statistics, by their names in the whole model."""

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Set training mode, or evaluation mode."""

    @abstractmethod
    def seed(self, key: int) -> None:
        """Seed the generators of the stage's random numbers with `key`."""

    @abstractmethod
    def infer(self, inputs: Sequence[ValueSpec], what: str) -> Inferred:
        """Return the specs of the outputs for inputs with these specs, without computing the outputs.

        Args:
            inputs: specs of the inputs, in order.
            what: name of the stage in messages.

        Raises:
            InvalidModel: the specs of the outputs depend on the content of the inputs.
        """

    @abstractmethod
    def with_buffers_kept(self) -> AbstractContextManager[None]:
        """Return a context in which calls leave the buffers unchanged: for forward passes that are repeated."""

    def extra_loss(self) -> torch.Tensor | None:
        """Return the term that the latest call adds to the loss of its micro-batch, such as a penalty, or None."""
        return None
