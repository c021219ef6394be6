"""The objects whose code runs in an operation, and the detection of changes to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import keras
from keras.src.ops.node import Node
from torch import nn

_STEADY = ("keras", "torch", "builtins")  # packages whose code does the same in every call
_OUTSIDE_OF_CALLS = ("_initializer", "_regularizer", "_constraint")
_PLAIN = (bool, int, float, str, type(None), tuple, slice, type(...))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOLDERS_OF_PARAMETERS = (nn.ParameterDict, nn.ParameterList)


class ModelParts:
    """Layers, functions and regularizers, with the variables that they read or write.

    Args:
        objects: the objects that are called; the objects that these call are found.
        variables: variables of all these objects.
        node: node of the call in the model's graph; None: the call has no node.
    """

    def __init__(self, objects: Sequence[Any], variables: Sequence[Any], node: Node | None = None) -> None:
        self.variables = variables
        self.objects = list({id(each): each for top in objects for each in _all_within(top)}.values())
        self._nodes = [node] if node is not None else []
        for part in self.objects:
            of_depths = getattr(part, "_nodes_by_depth", {}).values()
            self._nodes += [each for nodes in of_depths for each in nodes if not each.is_input]
        self.remember()

    def obstacle(self) -> str | None:
        """Return why the calls cannot be captured, or None. A reason that shows only in a call is not found here. Code
        of other packages than Keras may do something else in every call."""
        for each in self.objects:
            what = repr(getattr(each, "name", type(each).__name__))
            if not _is_steady(type(each)):
                return f"{type(each).__name__} is a class of your own"
            if not _is_steady(_call_of(each)):
                return f"{type(each).__name__} has a call of your own"
            attributes = vars(each)
            for name, value in attributes.items():
                if callable(value) and not name.endswith(_OUTSIDE_OF_CALLS) and not _is_steady(value):
                    return f"{name} of {what} is a function of your own"
            for name, module in attributes.get("_modules", {}).items():
                if not isinstance(module, (keras.Layer, *_HOLDERS_OF_PARAMETERS)):
                    return f"{name} of {what} is a torch module"
            if any(_hooks_of(attributes)):
                return f"{what} has hooks"
        for node in self._nodes:
            for value in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if not isinstance(value, (*_PLAIN, keras.KerasTensor)):
                    return f"{node.operation.name!r} is called with a {type(value).__name__}"
        return None

    def remember(self) -> None:
        """Record the present settings."""
        self._values = [(each, each._value, each._value.dtype, each._value.shape) for each in self.variables]
        self._attributes = [(vars(each), list(vars(each).values())) for each in self.objects]
        self._hooks = [hooks for attributes, _ in self._attributes for hooks in _hooks_of(attributes)]
        self._calls = [(each, _call_of(each)) for each in self.objects]
        self._containers = [
            (value, _items_of(value))
            for attributes, _ in self._attributes
            for name, value in attributes.items()
            if isinstance(value, (list, dict)) and not name.startswith("_")
        ]

    def have_changed(self) -> bool:
        """Return whether a setting is another object than recorded. Identity counts: equal values may have other types,
        and some values cannot be compared."""
        return (
            any(len(now) != len(before) or not all(map(is_, now.values(), before)) for now, before in self._attributes)
            or any(self._hooks)
            or any(_call_of(each) is not call for each, call in self._calls)
            or any(
                each._value is not value or value.dtype is not dtype or value.shape != shape
                for each, value, dtype, shape in self._values
            )
            or any(
                len(now) != len(before) or not all(map(is_, _items_of(now), before)) for now, before in self._containers
            )
        )


def _all_within(part: Any) -> Iterator[Any]:
    """Yield a part, and all layers and functions that it calls."""
    yield part
    if isinstance(part, keras.Layer):
        layers = part._flatten_layers(include_self=False)
        yield from layers
        for each in (part, *layers):
            yield from getattr(each, "_operations", ())


def _call_of(part: Any) -> Any:
    kind = type(part)
    return getattr(kind, "call", None) or kind.__call__


def _items_of(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)


def is_of_keras(thing: Any) -> bool:
    """Return whether Keras defines a function or a class, or the class of an instance."""
    return _package_of(thing) == "keras"


def _is_steady(thing: Any) -> bool:
    return _package_of(thing) in _STEADY


def _package_of(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).partition(".")[0]


def _hooks_of(attributes: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
    return [attributes[name] for name in _HOOKS if name in attributes]
