"""One stage of a model: a module, and which values go in and come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hocket.train.specs import Inferred, ValueSpec, infer


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a model. Values are named; what a value is (a tensor, a number, or a tree of them) its maker decides.

    Args:
        module: called with the values of `inputs`, in order; returns a tuple of those of `outputs`.
        inputs: names of values, of earlier stages or of the batch.
        outputs: names of values that later stages, or the user of the model, want.
        evaluation: the module that takes its place in evaluation, with the same parameters; None: the same.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    evaluation: nn.Module | None = None

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        module = self.evaluation if self.evaluation is not None and not self.module.training else self.module
        found = module(*inputs)
        assert isinstance(found, tuple) and len(found) == len(self.outputs)
        return found

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return its parameters by their names in the whole model, each once."""
        return dict(self.module.named_parameters())

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return what it keeps besides parameters, such as running statistics, by name in the whole model."""
        return dict(self.module.named_buffers())

    def train(self, mode: bool = True) -> None:
        """Have it compute as in training, or as in evaluation."""
        self.module.train(mode)
        if self.evaluation is not None:
            self.evaluation.train(mode)

    def seed(self, key: int) -> None:
        """Have random numbers depend on `key` alone, from here on."""
        torch.default_generator.manual_seed(key)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(key)

    def infer(self, inputs: Sequence[ValueSpec], what: str) -> Inferred:
        """Return what its outputs look like where its inputs look so, without computing them.

        Raises:
            InvalidModel: that depends on the content of the inputs; `what` is what the stage is called.
        """
        return infer(self.module, inputs, self.outputs, what)

    @contextmanager
    def with_buffers_kept(self) -> Iterator[None]:
        """Run the module without a lasting effect on its buffers: for a forward pass that is done again.

        Buffers are put aside, not written to, as a backward pass may still need them as they are.
        """
        kept = [
            (module, name, buffer)
            for module in self.module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        try:
            for module, name, buffer in kept:
                module._buffers[name] = buffer.clone()
            yield
        finally:
            for module, name, buffer in kept:
                module._buffers[name] = buffer
