"""A Keras optimizer of which parameter servers have parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from hocket.errors import InvalidArgument
from hocket.keras.on_server import restored
from hocket.keras.parts import is_of_keras
from hocket.keras.server_part import KerasPart, PartVariable
from hocket.keras.server_update import KerasServerUpdate
from hocket.keras.slots import slots_of

_NOT_SETTINGS = ("name", "built", "global_clipnorm", "loss_scale_factor")
_PLAIN = (bool, int, float, str, type(None))


def check_can_be_served(optimizer: Any, variables: Sequence[Any]) -> None:
    """Check that parameter servers can have the parts of an optimizer.

    Args:
        optimizer: optimizer of a compiled model.
        variables: the variables that it trains.

    Raises:
        InvalidArgument: they cannot; the message names the class, the setting or the variable.
    """
    name, kinds = type(optimizer).__name__, keras.optimizers
    use = "or use a gradient engine that sums"
    if isinstance(optimizer, kinds.LossScaleOptimizer):
        raise InvalidArgument(
            "LossScaleOptimizer skips a step if any gradient overflows, and parameter servers have only parts of the "
            f"gradients: use mixed_bfloat16, {use}"
        )
    if not is_of_keras(type(optimizer)) or not _is_served(getattr(kinds, name, None)):
        known = sorted(each for each in dir(kinds) if _is_served(getattr(kinds, each)))
        raise InvalidArgument(
            f"parameter servers make optimizers by name, and cannot make {name}: use {', '.join(known)}, {use}"
        )
    if optimizer.global_clipnorm is not None:
        raise InvalidArgument(
            f"{name} has global_clipnorm={optimizer.global_clipnorm!r}, and no parameter server has the norm of all "
            f"gradients: use clipnorm, {use}"
        )
    for each in variables:
        if getattr(each, "overwrite_with_gradient", False):
            raise InvalidArgument(f"{each.path!r} is overwritten with its gradient: parameter servers average those")
        if each.constraint is not None and not is_of_keras(type(each.constraint)):
            raise InvalidArgument(
                f"{each.path!r} has a constraint of your own, {each.constraint!r}, which parameter servers cannot "
                f"apply: use one of keras.constraints, {use}"
            )


def _is_served(kind: Any) -> bool:
    plain = keras.optimizers.Optimizer
    others = [getattr(keras.optimizers, each, plain) for each in ("LossScaleOptimizer", "MultiOptimizer")]
    return isinstance(kind, type) and issubclass(kind, plain) and kind not in (plain, *others)


def _config_of(optimizer: Any) -> dict[str, Any]:
    """Return the configuration of an optimizer with its present learning rate, for gradients that are not scaled."""
    copy = object.__new__(type(optimizer))
    vars(copy).update(vars(optimizer))
    vars(copy)["_learning_rate"] = None  # a schedule or a function may have no configuration
    config: dict[str, Any] = copy.get_config()
    return config | {"learning_rate": float(optimizer.learning_rate), "loss_scale_factor": None}


class KerasServedOptimizer:
    """A Keras optimizer, for `hocket.train.engines`. Servers get its configuration, without the learning rate's
    schedule: each rank sends the present learning rate when it has changed.

    Args:
        optimizer: built, with its state, which servers get too; their state comes back to it by `take`.
        variables: the variables that it trains.
        parameters: their values, in the order of the tensors' numbers.

    Raises:
        InvalidArgument: see `check_can_be_served`.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any], parameters: Sequence[torch.Tensor]) -> None:
        check_can_be_served(optimizer, variables)
        self._optimizer = optimizer
        by_id = {id(each.value): each for each in variables}
        self._variables = {number: by_id[id(each)] for number, each in enumerate(parameters) if id(each) in by_id}
        places = {id(each): place for place, each in enumerate(optimizer._trainable_variables)}
        self._places = {number: places[id(each)] for number, each in self._variables.items()}

    def check(self, parameters: Sequence[torch.Tensor]) -> None:
        """Check that the optimizer has all parameters.

        Raises:
            InvalidArgument: a parameter is missing in it, or see `check_can_be_served`.
        """
        if len(self._variables) != len(parameters):
            raise InvalidArgument(
                f"{type(self._optimizer).__name__} has {len(self._variables)} of {len(parameters)} trained parameters"
            )
        self.settings()

    def part(self, numbers: Mapping[int, int], parcels: Sequence[Sequence[int]]) -> KerasServerUpdate:
        """See `hocket.train.engines.servers.optimizers.ServedOptimizer`."""
        optimizer = self._optimizer
        slots = slots_of(optimizer)
        variables = {}
        for number in sorted(numbers.values()):
            variable, place = self._variables[number], self._places[number]
            variables[number] = PartVariable(
                variable.path,
                variable.value.detach().cpu(),
                {
                    name: None if each[place] is None else each[place].value.detach().cpu()
                    for name, each in slots.items()
                },
                decays=optimizer._use_weight_decay(variable),
            )
        product = getattr(optimizer, "_u_product", None)
        return _ForServer(
            KerasPart(
                type(optimizer).__name__,
                json.dumps(_config_of(optimizer)),
                self.settings(),
                variables,
                [list(each) for each in parcels],
                int(optimizer._iterations.value),
                None if product is None else float(product.value.detach()),
                keras.config.floatx(),
            )
        )

    def settings(self) -> str:
        """Return the present learning rate, the optimizer's other numbers and words, and constraints of variables.

        Raises:
            InvalidArgument: see `check_can_be_served`.
        """
        check_can_be_served(self._optimizer, list(self._variables.values()))
        own = {
            name: value
            for name, value in vars(self._optimizer).items()
            if name[0] != "_" and name not in _NOT_SETTINGS and type(value) in _PLAIN
        }
        constraints: dict[str, list[int]] = {}
        for number, each in self._variables.items():
            if each.constraint is not None:
                config = json.dumps(keras.constraints.serialize(each.constraint), sort_keys=True)
                constraints.setdefault(config, []).append(number)
        content = {
            "learning_rate": float(self._optimizer.learning_rate),
            "optimizer": own,
            "constraints": constraints,
        }
        return json.dumps(content, sort_keys=True)

    def state_nbytes(self, tensors: Sequence[int]) -> int:
        """See `hocket.train.engines.servers.optimizers.ServedOptimizer`."""
        return sum(each.value.nbytes for each in self._slots(tensors))

    def take(self, tensors: Sequence[int], state: bytes) -> None:
        """See `hocket.train.engines.servers.optimizers.ServedOptimizer`."""
        begin = 0
        with torch.no_grad():
            for each in self._slots(tensors):
                value = each.value
                if value.nbytes:
                    part = bytearray(state[begin : begin + value.nbytes])
                    value.copy_(torch.frombuffer(part, dtype=value.dtype).view(value.shape))
                begin += value.nbytes

    def _slots(self, tensors: Sequence[int]) -> list[Any]:
        """Return the optimizer's variables of some tensors, in the order of `KerasServerUpdate.state`."""
        slots = slots_of(self._optimizer)
        return [
            slots[name][self._places[number]]
            for number in tensors
            for name in sorted(slots)
            if slots[name][self._places[number]] is not None
        ]


class _ForServer(KerasServerUpdate):
    """Is pickled as its part, and makes nothing on the rank."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self._part,)
