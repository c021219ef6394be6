"""A Keras model as a graph of layers, whose parts are stages."""

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

    A model that is a layer of another model is one operation. Once the torch calls of an operation have been captured
    (`Replays`), stages run the operation without Keras, unless the model was compiled with ``run_eagerly=True``.

    Raises:
        InvalidType: `model` is not a Keras model.
        InvalidModel: Keras does not run on torch, or the model has no graph: it is subclassed, or not built yet.

    Examples:
        >>> import keras
        >>> layers = [keras.Input((4,), name="x"), keras.layers.Dense(8, name="up"), keras.layers.ReLU(name="act")]
        >>> [(layer.name, layer.inputs) for layer in hk.keras.graph_of_keras(keras.Sequential(layers)).layers]
        [('up', ('x',)), ('act', ('up',))]
    """
    if not isinstance(model, keras.Model):
        raise InvalidType(f"a model must be a keras.Model, not {model!r}")
    if keras.backend.backend() != "torch":
        raise InvalidModel(
            f"Keras runs on {keras.backend.backend()}, and hocket splits models on torch only: set KERAS_BACKEND=torch "
            "before keras is imported"
        )
    functional = _functional(model)
    names = _Names()
    batch = tuple(names.of_input(each) for each in functional._inputs)
    operations = [_operation(node, names) for node in _nodes_in_order(functional)]
    _check(operations)
    layers = tuple(Layer(each.name, each.inputs, each.parameters) for each in operations)
    places = [names.place(each) for each in functional._outputs]
    outputs = tuple(dict.fromkeys(name for name, _ in places))
    owners: dict[int, int] = {}  # by the id of a variable, the first operation that uses it
    for number, each in enumerate(operations):
        for variable in each.variables:
            owners.setdefault(id(variable), number)
    shapes = dict(zip(batch, functional._inputs, strict=True))
    requires = _requiring_gradients(operations)
    compute_dtype = model.compute_dtype if model.compute_dtype != model.variable_dtype else None

    def make_stage(here: range, inputs: tuple[str, ...], stage_outputs: tuple[str, ...]) -> Stage:
        own = [operations[number] for number in here]
        owned = frozenset(number for number, first in owners.items() if first in here)
        return KerasStage(own, inputs, stage_outputs, shapes, requires, owned, compute_dtype, not model.run_eagerly)

    def make_output(values: Sequence[Any]) -> Any:
        by_name = dict(zip(outputs, values, strict=True))
        flat = [KerasStage.tensor(by_name[name], place) for name, place in places]
        return unpack_singleton(keras.tree.pack_sequence_as(functional._outputs_struct, flat))

    return LayerGraph(layers, batch, outputs, make_stage, make_output, model, "operations")


class _Names:
    """The names of values, by their symbolic tensors."""

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
        """Return the name of the value that a tensor belongs to, and the tensor's index in the value."""
        return self._places[id(tensor)]

    def _unused(self, preferred: str) -> str:
        name, number = preferred, 1
        while name in self._used:
            number += 1
            name = f"{preferred} ({number})"
        self._used.add(name)
        return name


def _functional(model: keras.Model) -> Any:
    if isinstance(model, keras.Sequential):
        if model._functional is None:
            raise InvalidModel(f"model {model.name!r} has no input shape: add keras.Input(shape) as its first layer")
        return model._functional
    if not isinstance(model, keras.src.models.functional.Functional):
        raise InvalidModel(
            f"model {model.name!r} is a subclass of keras.Model and cannot be split: make it a Functional model, "
            "keras.Model(inputs, outputs), or a keras.Sequential"
        )
    return model


def _nodes_in_order(functional: Any) -> list[Node]:
    """Return the nodes in the order in which `Functional.call` runs them."""
    by_depth = functional._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def _operation(node: Node, names: _Names) -> Operation:
    places = {id(each): names.place(each) for each in node.arguments.keras_tensors}
    inputs = tuple(dict.fromkeys(name for name, _ in places.values()))
    return Operation(names.of_node(node), node, inputs, places)


def _check(operations: Sequence[Operation]) -> None:
    for layer in (layer for each in operations for layer in each.layers):
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            raise InvalidModel(
                f"layer {layer.name!r} keeps its state between batches, which micro-batches would change: set "
                "stateful=False"
            )


def _requiring_gradients(operations: Sequence[Operation]) -> Mapping[str, bool]:
    """Return for each value whether it depends on a trained parameter."""
    requires: dict[str, bool] = {}
    for each in operations:
        requires[each.name] = any(requires.get(name, False) for name in each.inputs) or any(
            parameter.requires_grad for parameter in each.parameters.values()
        )
    return requires
