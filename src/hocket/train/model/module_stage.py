"""A stage that is a torch module."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hocket.train.model.modes import set_mode
from hocket.train.model.specs import Inferred, ValueSpec, infer
from hocket.train.model.stage import Stage


class ModuleStage(Stage):
    """A stage that calls a torch module.

    Args:
        module: called with the values of `inputs`, in order; returns a tuple of the values of `outputs`. Its parameters
            and buffers have the names that they have in the whole model.
        inputs, outputs: see `Stage`.
        evaluation: module that is called in evaluation, with the same parameters; None: `module`.
        frozen: modules of the whole model that stay in evaluation mode.

    Examples:
        >>> import torch
        >>> class Square(torch.nn.Module):
        ...     def forward(self, x):
        ...         return (x**2,)
        >>> stage = hk.train.ModuleStage(Square(), inputs=("x",), outputs=("y",))
        >>> stage([torch.tensor([2.0, 3.0])])
        (tensor([4., 9.]),)
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        evaluation: nn.Module | None = None,
        frozen: Collection[nn.Module] = (),
    ) -> None:
        super().__init__(inputs, outputs)
        self.module = module
        self._evaluation = evaluation
        self._is_training = True
        ids = {id(each) for each in frozen}
        self._frozen = [each for each in module.modules() if id(each) in ids]

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Call the module."""
        outputs = self._current(*inputs)
        assert isinstance(outputs, tuple) and len(outputs) == len(self.outputs)
        return outputs

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the module's parameters."""
        return dict(self.module.named_parameters())

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the module's buffers."""
        return dict(self.module.named_buffers())

    def train(self, mode: bool = True) -> None:
        """Set the mode of the module."""
        self._is_training = mode
        set_mode(self.module, mode, self._frozen)
        if self._evaluation is not None:
            set_mode(self._evaluation, mode, self._frozen)

    def seed(self, key: int) -> None:
        """Seed torch's generators."""
        torch.default_generator.manual_seed(key)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(key)

    def infer(self, inputs: Sequence[ValueSpec], what: str) -> Inferred:
        """Run the module on fake tensors, which have no content."""
        return infer(self._current, inputs, self.outputs, what)

    @property
    def _current(self) -> nn.Module:
        return self.module if self._is_training or self._evaluation is None else self._evaluation

    @contextmanager
    def with_buffers_kept(self) -> Iterator[None]:
        """Run the module on copies of its buffers, so that a repeated forward pass leaves them unchanged.

        The buffers themselves are not written to and restored, since a backward pass may still need them.
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
