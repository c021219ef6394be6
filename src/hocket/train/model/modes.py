"""Training mode and evaluation mode of a module and of those within it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


class Modes:
    """The modes that a model and the modules within it are in.

    Args:
        model: the whole.

    Attributes:
        frozen: modules that stay in evaluation mode while the model trains, because the user has set them so.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = [(each, each.training) for each in model.modules()]
        self.frozen = tuple(each for each, is_training in self._before if not is_training) if model.training else ()

    @contextmanager
    def set_to(self, mode: bool) -> Iterator[None]:
        """Have the model in a mode for a while; afterwards every module is in that which it was in."""
        try:
            set_mode(self._model, mode, self.frozen)
            yield
        finally:
            for each, was_training in self._before:
                each.training = was_training


def set_mode(model: nn.Module, mode: bool, frozen: Collection[nn.Module]) -> None:
    """Set the mode of a module and of all within it, but for those that stay in evaluation mode."""
    model.train(mode)
    for each in frozen:
        each.training = False
