"""Optimizers of which parameter servers have parts."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from hocket.errors import InvalidArgument


class ServerUpdate(Protocol):
    """What a parameter server applies gradients with; it is pickled for the server's process."""

    @property
    def values(self) -> dict[int, torch.Tensor]:
        """The parameters that it changes, by the tensors' numbers."""

    def apply(self, gradients: Mapping[int, torch.Tensor], tensors: Sequence[int]) -> None:
        """Change the parameters of a parcel that have a gradient.

        Args:
            gradients: flat, by the tensors' numbers.
            tensors: numbers of all tensors of the parcel.
        """

    def state(self, tensors: Sequence[int]) -> bytes:
        """Return the optimizer's state of a parcel's tensors, as `ServedOptimizer.take` reads it."""

    def set(self, settings: Any) -> None:
        """Take over what `ServedOptimizer.settings` has returned on a rank."""


class ServedOptimizer(Protocol):
    """A rank's optimizer, of which servers have parts."""

    def check(self, parameters: Sequence[torch.Tensor]) -> None:
        """Raise InvalidArgument if it is not the optimizer of these parameters, or cannot be divided."""

    def part(self, numbers: Mapping[int, int], parcels: Sequence[Sequence[int]]) -> ServerUpdate:
        """Return the part for a server; the optimizer is not changed.

        Args:
            numbers: numbers of the server's tensors, by the parameters' ids.
            parcels: numbers of the tensors whose gradients are applied together.
        """

    def settings(self) -> str:
        """Return what may change during a training, as JSON."""

    def state_nbytes(self, tensors: Sequence[int]) -> int:
        """Return the number of bytes of `ServerUpdate.state`; 0: the state stays on the servers."""

    def take(self, tensors: Sequence[int], state: bytes) -> None:
        """Take over a server's state of a parcel's tensors, of `state_nbytes` bytes."""


class TorchServedOptimizer:
    """A torch optimizer. The servers' state does not come back to it.

    Args:
        optimizer: with its state, which servers get too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def check(self, parameters: Sequence[torch.Tensor]) -> None:
        """See `ServedOptimizer`."""
        wanted = {id(each) for each in parameters}
        own = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        if own != wanted:
            raise InvalidArgument(
                f"{type(self._optimizer).__name__} must have exactly the {len(wanted)} trained parameters of the "
                f"model; it lacks {len(wanted - own)}, and has {len(own - wanted)} others"
            )
        self.settings()

    def part(self, numbers: Mapping[int, int], parcels: Sequence[Sequence[int]]) -> TorchServerUpdate:
        """See `ServedOptimizer`."""
        return TorchServerUpdate(self._optimizer, numbers)

    def settings(self) -> str:
        """See `ServedOptimizer`."""
        return json.dumps(self.group_settings(), sort_keys=True)

    def group_settings(self) -> list[dict[str, Any]]:
        """Return the settings of each group, such as its learning rate.

        Raises:
            InvalidArgument: a learning rate is a tensor.
        """
        for number, group in enumerate(self._optimizer.param_groups):
            if isinstance(group.get("lr"), torch.Tensor):
                raise InvalidArgument(
                    f"the learning rate of group {number} is a tensor: parameter servers need a float"
                )
        return [
            {name: value for name, value in group.items() if name != "params" and _is_plain(value)}
            for group in self._optimizer.param_groups
        ]

    def state_nbytes(self, tensors: Sequence[int]) -> int:
        """See `ServedOptimizer`."""
        return 0

    def take(self, tensors: Sequence[int], state: bytes) -> None:
        """See `ServedOptimizer`."""


class TorchServerUpdate:
    """A torch optimizer of some of its parameters.

    Args:
        optimizer: optimizer of all parameters, with its state; it is not changed.
        numbers: numbers of the tensors that the server has, by the parameters' ids.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, numbers: Mapping[int, int]) -> None:
        part = copy.copy(optimizer)
        part.param_groups = [
            {**group, "params": [each for each in group["params"] if id(each) in numbers]}
            for group in optimizer.param_groups
        ]
        part.state = defaultdict(dict, {key: value for key, value in optimizer.state.items() if id(key) in numbers})
        for name in list(vars(part)):
            if name.endswith("_hooks"):  # those of the rank
                setattr(part, name, type(getattr(part, name))())
        self._optimizer = part
        # By place, since a pickled parameter has another id.
        self._numbers = [numbers[id(each)] for group in part.param_groups for each in group["params"]]

    @property
    def values(self) -> dict[int, torch.Tensor]:
        """See `ServerUpdate`."""
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        return dict(zip(self._numbers, parameters, strict=True))

    def apply(self, gradients: Mapping[int, torch.Tensor], tensors: Sequence[int]) -> None:
        """See `ServerUpdate`."""
        values = self.values
        for number, gradient in gradients.items():
            values[number].grad = gradient.view(values[number].shape)
        self._optimizer.step()
        for number in gradients:
            values[number].grad = None

    def state(self, tensors: Sequence[int]) -> bytes:
        """See `ServerUpdate`."""
        return b""

    def set(self, settings: Any) -> None:
        """See `ServerUpdate`."""
        for group, new in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(new)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, (bool, int, float, str))
