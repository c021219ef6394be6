"""A stage of operations of a Keras model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import keras
import torch
from keras.src import backend
from keras.src.models.functional import operation_fn
from keras.src.ops.node import Node
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from hocket.errors import InvalidModel
from hocket.keras.lifetimes import last_uses
from hocket.keras.parts import ModelParts
from hocket.keras.penalties import Penalties
from hocket.keras.replay import Replays
from hocket.train import Stage
from hocket.train.model.specs import Inferred, LeafSpec, ValueSpec, spec_of

COUNTER = 1  # index of the counter in the state of a seed generator


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a layer or function in a model.

    Args:
        name: name of the value that it computes: a tensor, or a tuple of tensors.
        node: its node in the model's graph.
        inputs: names of the values that it takes.
        places: for each symbolic input, by its id: the name of its value, and its index in the value.
    """

    name: str
    node: Node
    inputs: tuple[str, ...]
    places: Mapping[int, tuple[str, int]]

    @cached_property
    def layers(self) -> list[keras.Layer]:
        """The layer that it calls and the layers within it; empty for a function."""
        operation = self.node.operation
        return [operation, *operation._flatten_layers(include_self=False)] if isinstance(operation, keras.Layer) else []

    @cached_property
    def variables(self) -> list[Any]:
        """All variables of the layers."""
        operation = self.node.operation
        return list(operation.variables) if isinstance(operation, keras.Layer) else []

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable variables' values, by path."""
        operation = self.node.operation
        trainable = operation.trainable_variables if isinstance(operation, keras.Layer) else []
        return {each.path: each.value for each in trainable}

    @cached_property
    def replays(self) -> Replays:
        """The replays of this operation without Keras."""
        return Replays(ModelParts([self.node.operation], self.variables, self.node))


_Run: TypeAlias = Callable[[Operation, Sequence[Any]], Sequence[Any]]  # (operation, its tensors) -> flat outputs


class KerasStage(Stage):
    """Operations of a model, run in the model's order, with the layers of the whole model.

    A value is a tensor, a tuple of tensors, or for a tensor with a Keras mask, a dictionary of both.

    Args:
        operations: the operations of this stage.
        inputs, outputs: names of values.
        batch: the symbolic inputs of the model, by name.
        requires_gradient: for each value of the model, whether it has a gradient.
        owned: ids of the variables whose regularizers this stage adds to the loss.
        compute_dtype: type to which variables are cast in operations without their own type, as in the model; None: no
            cast.
        replays: whether to run operations without Keras once their torch calls are captured.

    Attributes:
        num_drawn: number of draws of a training pass, by the ids of seed generators.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        batch: Mapping[str, Any],
        requires_gradient: Mapping[str, bool],
        owned: frozenset[int],
        compute_dtype: str | None = None,
        replays: bool = True,
    ) -> None:
        super().__init__(inputs, outputs)
        self._operations = list(operations)
        self._batch = batch
        self._requires_gradient = requires_gradient
        self._is_training = True
        self.num_drawn: dict[int, int] = {}
        self._seeded_with = 0
        layers = {id(layer): layer for each in self._operations for layer in each.layers}
        self.layers = list(layers.values())
        variables = {id(each): each for operation in self._operations for each in operation.variables}
        self.variables = list(variables.values())
        self._added_losses: list[Any] = []
        self._compute_dtype = compute_dtype
        self._replays = replays
        self._penalties = Penalties([each for each in self.variables if id(each) in owned], replays)
        self._last_uses = last_uses([(*each.inputs, each.name) for each in self._operations], outputs)

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the operations."""
        # Tools that count or trace modules register global hooks, which need the calls of Keras' layers.
        is_watched = _has_any_global_hook()  # type: ignore[no-untyped-call]
        outputs = self._compute(inputs, self._run if self._replays and not is_watched else self._run_by_keras)
        if self._is_training and not self.num_drawn:
            self.num_drawn = {
                id(each): int(each.state.value[COUNTER]) - self._seeded_with for each in self._generators()
            }
        return outputs

    def _compute(self, inputs: Sequence[Any], run: _Run) -> tuple[Any, ...]:
        values = {
            name: self._standardized(name, value) if name in self._batch else _unpacked(value)
            for name, value in zip(self.inputs, inputs, strict=True)
        }
        self._added_losses = []
        for each, unused in zip(self._operations, self._last_uses, strict=True):
            results = run(each, [self.tensor(values[name], place) for name, place in each.places.values()])
            values[each.name] = results[0] if len(results) == 1 else tuple(results)
            for name in unused:
                del values[name]
        return tuple(_packed(values[name]) for name in self.outputs)

    def _run(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
        by_keras = partial(self._run_by_keras, operation)
        return operation.replays.of(tensors, self._is_training).run(tensors, by_keras)

    def _run_by_keras(self, operation: Operation, tensors: Sequence[Any]) -> list[Any]:
        arguments, keywords = operation.node.arguments.fill_in(dict(zip(operation.places, tensors, strict=True)))
        call = operation_fn(operation.node.operation, training=self._is_training)
        with backend.AutocastScope(self._compute_dtype) if self._compute_dtype is not None else nullcontext():
            outputs: list[Any] = keras.tree.flatten(call(*arguments, **keywords))
        # Read them now: the next call of the same layer clears them.
        self._added_losses += [loss for layer in operation.layers for loss in layer._get_own_losses()]
        return outputs

    def left_to_keras(self) -> dict[str, str]:
        """Return the operations that Keras runs, of those that have run, by name, and why."""
        if not self._replays:
            return {}
        reasons = {each.name: each.replays.obstacle for each in self._operations}
        reasons[f"regularizers of {self._operations[0].name} and what follows"] = self._penalties.obstacle
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @staticmethod
    def tensor(value: Any, place: int) -> Any:
        """Return one of the tensors of a value."""
        if isinstance(value, dict):
            value = value["value"]
        return value[place] if isinstance(value, tuple) else value

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the values of trainable variables by their paths."""
        return {name: value for operation in self._operations for name, value in operation.parameters.items()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the values of all other variables."""
        trained = {id(value) for value in self.parameters().values()}
        return {each.path: each.value.detach() for each in self.variables if id(each.value) not in trained}

    def train(self, mode: bool = True) -> None:
        """Set the `training` argument of later calls of layers."""
        self._is_training = mode
        if self._replays:
            for each in self._operations:
                each.replays.forget_if_changed()
            self._penalties.forget_if_changed()

    def seed(self, key: int) -> None:
        """Set the counters of the layers' seed generators, and seed torch's generator."""
        torch.default_generator.manual_seed(key)
        self._seeded_with = key % (1 << 31)
        for generator in self._generators():
            with torch.no_grad():
                generator.state.value[COUNTER] = self._seeded_with

    def _generators(self) -> Iterator[Any]:
        for layer in self.layers:
            yield from layer._seed_generators

    def infer(self, inputs: Sequence[ValueSpec], what: str) -> Inferred:
        """Run the operations on meta tensors, or if that fails, on zeros."""
        # On meta tensors, Keras would not cast variables.
        is_mixed = any(layer.compute_dtype != layer.variable_dtype for layer in self.layers)
        usual = str(backend.torch.core.get_device())
        devices = (usual,) if is_mixed else ("meta", usual)
        for device in devices:
            given = [_zeros(spec, device) for spec in inputs]
            try:
                with (
                    backend.torch.core.device_scope(device),
                    backend.StatelessScope(),
                    backend.SymbolicScope(),
                    torch.no_grad(),
                ):
                    outputs = self._compute(given, self._run_by_keras)
                break
            except Exception as error:  # a layer may raise anything
                if device == devices[-1]:
                    raise InvalidModel(f"{what} cannot be run on its inputs ({_text_of(error)})") from error
        pairs = zip(self.outputs, outputs, strict=True)
        return Inferred(tuple(self._spec(name, value) for name, value in pairs), updated=self._updated())

    @contextmanager
    def with_buffers_kept(self) -> Iterator[None]:
        """Restore the buffers after the context."""
        kept = [(value, value.clone()) for value in self.buffers().values()]
        try:
            yield
        finally:
            with torch.no_grad():
                for value, before in kept:
                    if not torch.equal(value, before):  # a write to an unchanged buffer could break a backward pass
                        value.copy_(before)

    def extra_loss(self) -> torch.Tensor | None:
        """Return the sum of the losses that layers have added and of the penalties of regularizers, or None."""
        losses = [*self._added_losses, *self._penalties()]
        return torch.stack([torch.as_tensor(loss).reshape(()) for loss in losses]).sum() if losses else None

    def _updated(self) -> tuple[str, ...]:
        """Return the names of variables that a pass changes, such as running statistics."""
        changing = [each for each in self.layers if each.trainable and not isinstance(each, keras.layers.Normalization)]
        return tuple(variable.path for layer in changing for variable in layer._non_trainable_variables)

    def _standardized(self, name: str, value: Any) -> Any:
        """Convert an input of the model as Keras does: to the declared type and number of axes."""
        declared = self._batch[name]
        tensor = keras.ops.convert_to_tensor(value, dtype=declared.dtype)
        if len(tensor.shape) + 1 == len(declared.shape) and declared.shape[-1] == 1:
            tensor = keras.ops.expand_dims(tensor, -1)
        elif len(tensor.shape) == len(declared.shape) + 1 and tensor.shape[-1] == 1:
            tensor = keras.ops.squeeze(tensor, -1)
        return tensor

    def _spec(self, name: str, value: Any) -> ValueSpec:
        tensors = keras.tree.map_structure(_like, value)
        spec = spec_of(tensors, f"value {name!r}")
        has_gradient = self._requires_gradient.get(name, False)
        leaves = tuple(
            LeafSpec(leaf.shape, leaf.dtype, has_gradient and leaf.dtype.is_floating_point, leaf.number)
            for leaf in spec.leaves
        )
        return ValueSpec(spec.tree, leaves)


def _packed(value: Any) -> Any:
    """Return a value as it is sent: a tensor with a mask as a dictionary of both."""
    if isinstance(value, tuple):
        return value
    mask = backend.get_keras_mask(value)
    return value if mask is None else {"value": value, "mask": mask}


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        backend.set_keras_mask(value["value"], value["mask"])
        return value["value"]
    return value


def _zeros(spec: ValueSpec, device: str) -> Any:
    leaves = [torch.zeros(leaf.shape, dtype=leaf.dtype, device=device) for leaf in spec.leaves]
    return pytree.tree_unflatten(leaves, spec.tree)


def _like(tensor: Any) -> torch.Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def _text_of(error: Exception) -> str:
    """Return the text of an error in one line; Keras puts the place of the error before it, and terminal colours."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines()]
    where = lines[0] if lines and lines[0].startswith("Exception encountered") else ""
    text = next((line for line in lines if line and line != where), "")
    return f"{type(error).__name__}: {text or where}" + (
        f", in {where.split()[-1].rstrip('.')}" if where and text else ""
    )
