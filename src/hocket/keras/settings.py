"""What the layers and the optimizer of a model are set to, so that ranks can be told what one of them has set."""

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
_OF_KERAS = {  # which sets them as it trains, evaluates and predicts
    "training", "train_function", "test_function", "predict_function", "stop_training", "stop_evaluating", "history",
}  # fmt: skip


class SharedSettings:
    """Numbers and words that layers, their regularizers and constraints, and the optimizer are set to.

    Args:
        model: compiled; the same on every rank.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._compiled = model, (model.optimizer, model._compile_loss)
        self._objects = list({id(each): each for each in self._all_objects()}.values())
        self._known: list[dict[str, Any]] = []

    def remember(self) -> None:
        """Note what they are set to now."""
        self._known = [dict(vars(each)) for each in self._objects]

    def changed(self) -> list[Setting]:
        """Return what has been set since.

        Raises:
            InvalidModel: that cannot be told to other ranks, or not while a model is trained.
        """
        if any(map(is_not, (self._model.optimizer, self._model._compile_loss), self._compiled)):
            raise InvalidModel("a callback has compiled the model anew: end the training first (stop_training)")
        found = []
        for number, (each, known) in enumerate(zip(self._objects, self._known, strict=True)):
            for name, value in vars(each).items():
                if known.get(name, _ABSENT) is not value and name not in _OF_KERAS:
                    self._check(each, name, value)
                    if name[0] != "_" and type(value) in _PLAIN:
                        found.append((number, name, value))
        return found

    def set(self, settings: Iterable[Setting]) -> None:
        """Set what was set on another rank."""
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
                f"a callback has set {what}: what is trained is settled when a training begins; end it "
                "(stop_training), and call fit again"
            )
        if name[0] != "_" and callable(value):
            raise InvalidModel(f"a callback has set {what} to a function, which other ranks cannot be given")
