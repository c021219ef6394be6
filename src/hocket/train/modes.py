"""Training mode and evaluation mode of a module and of those within it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


def frozen_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules that stay in evaluation mode while the model trains, as somebody has set them so."""
    return tuple(each for each in model.modules() if not each.training) if model.training else ()


def set_mode(model: nn.Module, mode: bool, frozen: Collection[nn.Module]) -> None:
    """Set the mode of a module and of all within it, but for those that stay in evaluation mode."""
    model.train(mode)
    for each in frozen:
        each.training = False


@contextmanager
def in_mode(model: nn.Module, mode: bool) -> Iterator[None]:
    """Have a model in a mode for a while; afterwards every module is in that which it was in."""
    before = [(each, each.training) for each in model.modules()]
    try:
        set_mode(model, mode, frozen_modules(model))
        yield
    finally:
        for each, was_training in before:
            each.training = was_training
