"""A parameter server's part of a Keras optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import keras
import torch

from hocket.keras.server_part import KerasPart, PartVariable
from hocket.keras.slots import slots_of, step_without_gradients


class KerasServerUpdate:
    """Keras optimizers of the same configuration, one for each parcel, since a Keras optimizer has one count of steps,
    and the gradients of parcels come one after the other.

    It is a `ServerUpdate` of `hocket.train.engines`.

    Args:
        part: part of the rank's optimizer.
    """

    def __init__(self, part: KerasPart) -> None:
        self._part = part

    @cached_property
    def _variables(self) -> dict[int, Any]:
        keras.config.set_floatx(self._part.floatx)
        with keras.device("cpu"):
            return {number: _variable(each) for number, each in self._part.variables.items()}

    @cached_property
    def _optimizers(self) -> dict[tuple[int, ...], Any]:
        """The optimizer of each parcel, by the numbers of its tensors."""
        with keras.device("cpu"):
            made = {tuple(each): self._make(each) for each in self._part.parcels}
            self._set(json.loads(self._part.settings), made)
        return made

    def _make(self, numbers: Sequence[int]) -> Any:
        of_parcel = [self._part.variables[number] for number in numbers]
        variables = [self._variables[number] for number in numbers]
        optimizer = getattr(keras.optimizers, self._part.kind).from_config(json.loads(self._part.config))
        kept = [variable for each, variable in zip(of_parcel, variables, strict=True) if not each.decays]
        if kept:
            optimizer.exclude_from_weight_decay(var_list=kept)
        optimizer.build(variables)
        for name, slots in slots_of(optimizer).items():
            for each, slot in zip(of_parcel, slots, strict=True):
                value = each.slots[name]
                if slot is not None and value is not None:
                    slot.assign(value)
        optimizer._iterations.assign(self._part.num_steps)
        if self._part.product is not None:
            optimizer._u_product.assign(self._part.product)
        return optimizer

    @property
    def values(self) -> dict[int, torch.Tensor]:
        """See `ServerUpdate`."""
        return {number: each.value.detach() for number, each in self._variables.items()}

    def apply(self, gradients: Mapping[int, torch.Tensor], tensors: Sequence[int]) -> None:
        """See `ServerUpdate`."""
        optimizer = self._optimizers[tuple(tensors)]
        with keras.device("cpu"), torch.no_grad():
            if not gradients:
                step_without_gradients(optimizer)
                return
            variables = [self._variables[number] for number in gradients]
            shaped = [
                each.view(tuple(variable.shape)) for each, variable in zip(gradients.values(), variables, strict=True)
            ]
            optimizer.apply(shaped, variables)

    def state(self, tensors: Sequence[int]) -> bytes:
        """Return the optimizer's variables of each tensor, in the order of their names."""
        slots = slots_of(self._optimizers[tuple(tensors)])
        content = []
        for place in range(len(tensors)):
            for name in sorted(slots):
                slot = slots[name][place]
                if slot is not None:
                    content.append(slot.value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return b"".join(content)

    def set(self, settings: Any) -> None:
        """See `ServerUpdate`.

        Raises:
            ValueError: they are not those of such an optimizer.
        """
        with keras.device("cpu"):
            self._set(settings, self._optimizers)

    def _set(self, settings: Any, optimizers: Mapping[tuple[int, ...], Any]) -> None:
        if not isinstance(settings, dict) or settings.keys() != {"learning_rate", "optimizer", "constraints"}:
            raise ValueError("they must have a learning rate, numbers of the optimizer, and constraints")
        rate, own, constraints = settings["learning_rate"], settings["optimizer"], settings["constraints"]
        if not isinstance(rate, (int, float)) or not isinstance(own, dict) or not isinstance(constraints, dict):
            raise ValueError(f"a learning rate {rate!r} must be a number, and the others objects")
        for optimizer in optimizers.values():
            for name, value in own.items():
                if name[:1] == "_" or name not in vars(optimizer) or isinstance(value, (list, dict)):
                    raise ValueError(f"{self._part.kind} has no setting {name!r} that is a number or a word")
        made = {}
        for config, numbers in constraints.items():
            read = json.loads(config)
            if not isinstance(read, dict) or read.get("module") != "keras.constraints":
                raise ValueError(f"{config} must be a constraint of Keras")  # else Keras would import what it names
            constraint = keras.constraints.deserialize(read)
            if not isinstance(constraint, keras.constraints.Constraint) or not isinstance(numbers, list):
                raise ValueError(f"{config} must be a constraint of Keras, and of a list of variables")
            made.update(dict.fromkeys(numbers, constraint))
        for optimizer in optimizers.values():
            optimizer.learning_rate = float(rate)
            for name, value in own.items():
                setattr(optimizer, name, value)
        for number, variable in self._variables.items():
            variable.constraint = made.get(number)


def _variable(part: PartVariable) -> Any:
    *scopes, name = part.path.split("/")
    with ExitStack() as stack:
        for each in scopes:
            stack.enter_context(keras.name_scope(each))
        return keras.Variable(part.value, dtype=str(part.value.dtype).removeprefix("torch."), name=name)
