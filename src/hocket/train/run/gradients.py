"""The gradients of a copy of a stage, summed over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn

from hocket.train.run.backward import Gradients


class StageGradients:
    """The gradients of one copy of a stage, summed over micro-batches.

    Args:
        parameters: trained parameters of the stage.
        in_order: sum in the order of micro-batches, in whatever order they are computed; early gradients are kept.
        micro_batches: micro-batches of a step, in order.

    Attributes:
        on_ready: called with the place of a parameter and its gradient as soon as a backward pass has completed the
            sum over all micro-batches; None: nobody wants to know.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], in_order: bool, micro_batches: Sequence[int]) -> None:
        self.parameters = list(parameters)
        self.sums: Gradients = [None] * len(self.parameters)
        self._order = list(micro_batches) if in_order else None
        self._next = 0
        self._early: dict[int, Gradients] = {}
        self._num_micro_batches, self._num_added = len(micro_batches), 0
        self.on_ready: Callable[[int, torch.Tensor], None] | None = None

    @contextmanager
    def collecting(self, micro_batch: int) -> Iterator[None]:
        """Within the context, ``.grad`` of the parameters collects the gradients of one micro-batch."""
        is_next = self._order is None or self._order[self._next] == micro_batch
        before = [parameter.grad for parameter in self.parameters]
        try:
            for parameter, total in zip(self.parameters, self.sums, strict=True):
                parameter.grad = total if is_next else None
            with self._telling() if is_next and self._num_added == self._num_micro_batches - 1 else nullcontext():
                yield
            collected: Gradients = [parameter.grad for parameter in self.parameters]
        finally:
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient
        if not is_next:
            self._early[micro_batch] = collected
            return
        self.sums = collected
        self._num_added += 1
        self._add_early()

    def add(self, micro_batch: int, gradients: Gradients) -> None:
        """Add the gradients of one micro-batch."""
        with self.collecting(micro_batch):
            _add(self.parameters, gradients)

    def reset(self) -> None:
        """Reset the sums for a new step."""
        self.sums = [None] * len(self.parameters)
        self._next = self._num_added = 0
        self._early.clear()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Within the context, backward passes call `on_ready`."""
        if self.on_ready is None:
            yield
            return
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_tell, self.on_ready, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self.parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _add_early(self) -> None:
        """Add the kept gradients of the micro-batches that are next in order."""
        if self._order is None:
            return
        self._next += 1
        while self._next < len(self._order) and self._order[self._next] in self._early:
            self.sums = added(self.sums, self._early.pop(self._order[self._next]))
            self._num_added += 1
            self._next += 1


def _tell(on_ready: Callable[[int, torch.Tensor], None], number: int, parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    on_ready(number, parameter.grad)


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
