"""A Keras model as a graph of layers, and parts of it as stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras.src.models.functional import unpack_singleton
from keras.src.ops.node import Node

from hocket.errors import InvalidModel, InvalidType
from hocket.keras.stage import KerasStage, Operation
from hocket.train import Layer, LayerGraph, Stage


def graph_of_keras(model: keras.Model) -> LayerGraph:
    """Return the operations of a Functional or Sequential model, in the order in which the model runs them.

    A model that is used as a layer of another one stays whole. Stages run operations without Keras as soon as it is
    known what that calls of torch (`Replays`), unless the model was compiled with ``run_eagerly=True``.

    Raises:
        InvalidType: it is no Keras model.
        InvalidModel: Keras does not run on torch, or the model has no graph: it is subclassed, or not built yet.
    """
    if not isinstance(model, keras.Model):
        raise InvalidType(f"a model is a keras.Model, not {model!r}")
    if keras.backend.backend() != "torch":
        raise InvalidModel(
            f"Keras runs on {keras.backend.backend()}, and can be split on torch alone: set KERAS_BACKEND=torch before "
            "keras is imported"
        )
    functional = _functional(model)
    names = _Names()
    batch = tuple(names.of_input(each) for each in functional._inputs)
    operations = [_operation(node, names) for node in _nodes_in_order(functional)]
    _check(operations)
    layers = tuple(Layer(each.name, each.inputs, each.parameters) for each in operations)
    places = [names.place(each) for each in functional._outputs]
    outputs = tuple(dict.fromkeys(name for name, _ in places))
    owners: dict[int, int] = {}  # of each variable, the first operation that uses it
    for number, each in enumerate(operations):
        for variable in each.variables:
            owners.setdefault(id(variable), number)
    shapes = dict(zip(batch, functional._inputs, strict=True))
    requires = _requiring_gradients(operations)
    compute_dtype = model.compute_dtype if model.compute_dtype != model.variable_dtype else None

    def make_stage(here: range, inputs: tuple[str, ...], given: tuple[str, ...]) -> Stage:
        own = [operations[number] for number in here]
        owned = frozenset(number for number, first in owners.items() if first in here)
        return KerasStage(own, inputs, given, shapes, requires, owned, compute_dtype, not model.run_eagerly)

    def make_output(values: Sequence[Any]) -> Any:
        found = dict(zip(outputs, values, strict=True))
        flat = [KerasStage.tensor(found[name], place) for name, place in places]
        return unpack_singleton(keras.tree.pack_sequence_as(functional._outputs_struct, flat))

    return LayerGraph(layers, batch, outputs, make_stage, make_output, model, "operations")


class _Names:
    """Names of values by the symbolic tensors that they belong to."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, int]] = {}
        self._used: set[str] = set()

    def of_input(self, tensor: Any) -> str:
        name = self._unused(tensor._keras_history.operation.name)
        self._places[id(tensor)] = name, 0
        return name

    def of_node(self, node: Node) -> str:
        name = self._unused(node.operation.name)
        for place, tensor in enumerate(node.outputs):
            self._places[id(tensor)] = name, place
        return name

    def place(self, tensor: Any) -> tuple[str, int]:
        """The name of the value that a tensor belongs to, and its place in it."""
        return self._places[id(tensor)]

    def _unused(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._used:
            number += 1
            name = f"{wanted} ({number})"
        self._used.add(name)
        return name


def _functional(model: keras.Model) -> Any:
    if isinstance(model, keras.Sequential):
        if model._functional is None:
            raise InvalidModel(f"model {model.name!r} has no input shape yet: begin it with keras.Input(shape)")
        return model._functional
    if not isinstance(model, keras.src.models.functional.Functional):
        raise InvalidModel(
            f"model {model.name!r} is a subclass of keras.Model, whose calls cannot be split: make it a Functional "
            "model, keras.Model(inputs, outputs), or a keras.Sequential"
        )
    return model


def _nodes_in_order(functional: Any) -> list[Node]:
    """The nodes as `Functional.call` goes through them."""
    by_depth = functional._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def _operation(node: Node, names: _Names) -> Operation:
    places = {id(each): names.place(each) for each in node.arguments.keras_tensors}
    inputs = tuple(dict.fromkeys(name for name, _ in places.values()))
    return Operation(names.of_node(node), node, inputs, places)


def _check(operations: Sequence[Operation]) -> None:
    for layer in (layer for each in operations for layer in each.layers):
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            raise InvalidModel(f"layer {layer.name!r} keeps its state between batches, which micro-batches change")


def _requiring_gradients(operations: Sequence[Operation]) -> Mapping[str, bool]:
    """Of each value, whether something that is trained went into it."""
    found: dict[str, bool] = {}
    for each in operations:
        found[each.name] = any(found.get(name, False) for name in each.inputs) or any(
            parameter.requires_grad for parameter in each.parameters.values()
        )
    return found
