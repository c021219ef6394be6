"""Training mode and evaluation mode of a module and its submodules."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


class Modes:
    """The present modes of a model and its submodules.

    Args:
        model: the whole model.

    Attributes:
        frozen: modules that the user has set to evaluation mode; they keep it while the model trains.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = [(each, each.training) for each in model.modules()]
        self.frozen = tuple(each for each, is_training in self._before if not is_training) if model.training else ()

    @contextmanager
    def set_to(self, mode: bool) -> Iterator[None]:
        """Set the mode of the model within a ``with`` block; restore every module's mode afterwards."""
        try:
            set_mode(self._model, mode, self.frozen)
            yield
        finally:
            for each, was_training in self._before:
                each.training = was_training


def set_mode(model: nn.Module, mode: bool, frozen: Collection[nn.Module]) -> None:
    """Set the mode of a module and its submodules, except those in `frozen`, which stay in evaluation mode."""
    model.train(mode)
    for each in frozen:
        each.training = False
