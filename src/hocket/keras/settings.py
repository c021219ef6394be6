"""The settings of a model's layers and optimizer, and the changes to them that one rank sends to the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import is_not
from typing import Any, TypeAlias

import keras

from hocket.errors import InvalidModel

Setting: TypeAlias = tuple[int, str, Any]  # number of the object, name of the attribute, its value

_PLAIN = (bool, int, float, str, type(None))
_WITH_SETTINGS = ("_regularizer", "_constraint")
_ABSENT = object()
_OF_KERAS = {  # attributes that Keras itself sets while it trains, evaluates and predicts
    "training", "train_function", "test_function", "predict_function", "stop_training", "stop_evaluating", "history",
}  # fmt: skip


class SharedSettings:
    """Settings, which are numbers and words, of layers, their regularizers and constraints, and the optimizer.

    Args:
        model: a compiled model; equal models on all ranks.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._compiled = model, (model.optimizer, model._compile_loss)
        self._objects = list({id(each): each for each in self._all_objects()}.values())
        self._known: list[dict[str, Any]] = []

    def remember(self) -> None:
        """Record the present settings."""
        self._known = [dict(vars(each)) for each in self._objects]

    def changed(self) -> list[Setting]:
        """Return the settings that have changed since `remember`.

        Raises:
            InvalidModel: a change cannot be sent to other ranks, or must not be made during a training.
        """
        if any(map(is_not, (self._model.optimizer, self._model._compile_loss), self._compiled)):
            raise InvalidModel("a callback has compiled the model again: end the training first (stop_training)")
        changed = []
        for number, (each, known) in enumerate(zip(self._objects, self._known, strict=True)):
            for name, value in vars(each).items():
                if known.get(name, _ABSENT) is not value and name not in _OF_KERAS:
                    self._check(each, name, value)
                    if name[0] != "_" and type(value) in _PLAIN:
                        changed.append((number, name, value))
        return changed

    def set(self, settings: Iterable[Setting]) -> None:
        """Apply the changes of another rank."""
        for number, name, value in settings:
            setattr(self._objects[number], name, value)

    def _all_objects(self) -> Iterator[Any]:
        for layer in self._model._flatten_layers():
            yield layer
            yield from (
                value
                for name, value in vars(layer).items()
                if name.endswith(_WITH_SETTINGS) and hasattr(value, "__dict__")
            )
        yield self._model.optimizer
        if hasattr(self._model.optimizer, "inner_optimizer"):
            yield self._model.optimizer.inner_optimizer

    @staticmethod
    def _check(owner: Any, name: str, value: Any) -> None:
        what = f"{name.lstrip('_')} of {getattr(owner, 'name', type(owner).__name__)!r}"
        if name == "_trainable":
            raise InvalidModel(
                f"a callback has set {what}, which must not change during a training: end the training "
                "(stop_training), and call fit again"
            )
        if name[0] != "_" and callable(value):
            raise InvalidModel(
                f"a callback has set {what} to a function, which cannot be sent to other ranks: set it before the "
                "training"
            )
