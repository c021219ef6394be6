"""The gradients of a copy of a stage, summed over micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from hocket.train.run.backward import Gradients


class StageGradients:
    """The gradients of one copy of a stage, summed over micro-batches.

    Args:
        parameters: trained parameters of the stage.
        in_order: sum in the order of micro-batches, in whatever order they are computed; early gradients are kept.
        micro_batches: micro-batches of a step, in order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], in_order: bool, micro_batches: Sequence[int]) -> None:
        self.parameters = list(parameters)
        self.sums: Gradients = [None] * len(self.parameters)
        self._order = list(micro_batches) if in_order else None
        self._next = 0
        self._early: dict[int, Gradients] = {}

    @contextmanager
    def collecting(self, micro_batch: int) -> Iterator[None]:
        """Within the context, ``.grad`` of the parameters collects the gradients of one micro-batch."""
        is_next = self._order is None or self._order[self._next] == micro_batch
        before = [parameter.grad for parameter in self.parameters]
        try:
            for parameter, total in zip(self.parameters, self.sums, strict=True):
                parameter.grad = total if is_next else None
            yield
            collected: Gradients = [parameter.grad for parameter in self.parameters]
        finally:
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient
        if not is_next:
            self._early[micro_batch] = collected
            return
        self.sums = collected
        self._add_early()

    def add(self, micro_batch: int, gradients: Gradients) -> None:
        """Add the gradients of one micro-batch."""
        with self.collecting(micro_batch):
            _add(self.parameters, gradients)

    def reset(self) -> None:
        """Reset the sums for a new step."""
        self.sums = [None] * len(self.parameters)
        self._next = 0
        self._early.clear()

    def _add_early(self) -> None:
        """Add the kept gradients of the micro-batches that are next in order."""
        if self._order is None:
            return
        self._next += 1
        while self._next < len(self._order) and self._order[self._next] in self._early:
            self.sums = added(self.sums, self._early.pop(self._order[self._next]))
            self._next += 1


def added(sums: Gradients, gradients: Gradients) -> Gradients:
    """Add gradients to sums, in place where both exist; return the sums."""
    pairs = zip(sums, gradients, strict=True)
    both = [(total, each) for total, each in pairs if total is not None and each is not None]
    if both:
        torch._foreach_add_([total for total, _ in both], [each for _, each in both])
    return [each if total is None else total for total, each in zip(sums, gradients, strict=True)]


def _add(parameters: Sequence[nn.Parameter], gradients: Gradients) -> None:
    sums = added([parameter.grad for parameter in parameters], gradients)
    for parameter, total in zip(parameters, sums, strict=True):
        parameter.grad = total
