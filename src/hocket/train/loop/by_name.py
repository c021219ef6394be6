"""Losses and optimizers of torch, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from hocket.errors import InvalidArgument
from hocket.train.loop.update import MakeOptimizer
from hocket.train.run.loss import Loss

LOSSES: Mapping[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
}
_OPTIMIZERS: Mapping[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, learning_rate: torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9),
    "adam": lambda parameters, learning_rate: torch.optim.Adam(parameters, lr=learning_rate),
    "adamw": lambda parameters, learning_rate: torch.optim.AdamW(parameters, lr=learning_rate),
}


def optimizer_by_name(name: str, learning_rate: float) -> MakeOptimizer:
    """Return a function from parameters to an optimizer.

    Raises:
        InvalidArgument: no optimizer has that name.
    """
    if name not in _OPTIMIZERS:
        raise InvalidArgument(f"optimizer must be {', '.join(_OPTIMIZERS)}; not {name!r}")
    make = _OPTIMIZERS[name]
    return lambda parameters: make(parameters, learning_rate)
