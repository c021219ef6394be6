"""The loss function of a pipeline, and what it may be, return and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from hocket.errors import InvalidArgument, InvalidModel, InvalidType
from hocket.train.model.split_model import SplitModel

Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]


class CheckedLoss:
    """A loss function that checks each of its values, and the graph of the first value that has one.

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
            InvalidType, InvalidArgument: it is no tensor of one number.
            InvalidModel: it reads parameters of other stages.
        """
        loss = self._function(output, target)
        check_loss_value(loss)
        if not self._has_checked_graph and loss.requires_grad:
            check_loss_graph(loss, self._of_other_stages)
            self._has_checked_graph = True
        return loss


def check_loss(loss: Any) -> None:
    """Check that a loss can be called.

    Raises:
        InvalidType: it cannot, or is a class.
    """
    if isinstance(loss, type) or not callable(loss):
        raise InvalidType(f"loss is a function of the model's output and the target, or a module, not {loss!r}")


def check_loss_value(value: Any) -> None:
    """Check what a loss gave.

    Raises:
        InvalidType: it is no tensor.
        InvalidArgument: it is not one number.
    """
    if not isinstance(value, torch.Tensor):
        raise InvalidType(f"a loss gives a tensor of one number, not a {type(value).__name__}")
    if value.numel() != 1:
        raise InvalidArgument(
            f"a loss gives one number for a micro-batch, not a tensor of shape {tuple(value.shape)}: take the mean"
        )


def check_loss_graph(loss: torch.Tensor, others: Mapping[int, str]) -> None:
    """Check that a loss takes nothing of the model but what its last stage gave.

    Args:
        loss: with its graph.
        others: names of parameters that other stages have, by their ids.

    Raises:
        InvalidModel: it takes one of them, which would get no gradient by that.
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
                f"the loss reads parameter {name!r} of another stage, which is trained on another rank: leave decay of "
                "weights to the optimizer (weight_decay), and make other losses of parts outputs of the model"
            )
        waiting += [each for each, _ in node.next_functions]
