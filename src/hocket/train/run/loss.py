"""The loss function of a pipeline, with checks of its values and its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from hocket.errors import InvalidArgument, InvalidModel, InvalidType
from hocket.train.model.split_model import SplitModel

Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]


class CheckedLoss:
    """A loss function whose values are checked, and the graph of the first value that has one.

    Args:
        function: (output of the model, target) -> scalar.
        split: the model in stages.
    """

    def __init__(self, function: Loss, split: SplitModel) -> None:
        self._function = function
        own = {id(each) for each in split.stages[-1].parameters().values()}
        self._of_other_stages = {id(each): name for name, each in split.parameters().items() if id(each) not in own}
        self._has_checked_graph = False

    def __call__(self, output: Any, target: Any) -> torch.Tensor:
        """Return the loss of a micro-batch.

        Raises:
            InvalidType, InvalidArgument: the loss is not a tensor of one number.
            InvalidModel: the loss function reads parameters of other stages.
        """
        loss = self._function(output, target)
        check_loss_value(loss)
        if not self._has_checked_graph and loss.requires_grad:
            check_loss_graph(loss, self._of_other_stages)
            self._has_checked_graph = True
        return loss


def check_loss(loss: Any) -> None:
    """Check that a loss is a function or a module.

    Raises:
        InvalidType: `loss` is not callable, or is a class.
    """
    if isinstance(loss, type) or not callable(loss):
        raise InvalidType(f"loss must be a function of the model's output and the target, or a module, not {loss!r}")


def check_loss_value(value: Any) -> None:
    """Check a value of a loss.

    Raises:
        InvalidType: `value` is not a tensor.
        InvalidArgument: it is not one number.
    """
    if not isinstance(value, torch.Tensor):
        raise InvalidType(f"a loss must return a tensor of one number, not a {type(value).__name__}")
    if value.numel() != 1:
        raise InvalidArgument(
            f"a loss must return one number, not a tensor of shape {tuple(value.shape)}: take the mean"
        )


def check_loss_graph(loss: torch.Tensor, others: Mapping[int, str]) -> None:
    """Check that a loss depends on the model through the outputs of its last stage only.

    Args:
        loss: a value of the loss, with its graph.
        others: names of the parameters of other stages, by their ids.

    Raises:
        InvalidModel: the loss reads one of these parameters, which would not receive the gradient.
    """
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = others.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise InvalidModel(
                f"the loss reads parameter {name!r} of another stage, which another rank trains: use the optimizer's "
                "weight_decay for penalties on weights, and return other values as outputs of the model"
            )
        waiting += [each for each, _ in node.next_functions]
