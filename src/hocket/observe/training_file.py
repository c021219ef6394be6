"""What `hocket train --json` prints, and how it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from hocket.errors import InvalidArgument
from hocket.versioned_json import Head

HEAD = Head("hocket training, version ", 1, InvalidArgument)
_MOST_CURVES = 100


@dataclass(frozen=True)
class TrainingFile:
    """What a training has reported.

    Args:
        plan: how it was split, in words.
        epochs: numbers of the epochs.
        curves: of each value that was reported, its number after each epoch; None: it was not finite.
        left_to_keras: operations that Keras itself ran, with the reasons.
    """

    plan: str
    epochs: tuple[int, ...]
    curves: Mapping[str, tuple[float | None, ...]]
    left_to_keras: Mapping[str, str]

    @classmethod
    def from_json(cls, text: str, place: str) -> TrainingFile:
        """Read what was printed.

        Args:
            text: JSON.
            place: origin of the text, for messages.

        Raises:
            InvalidArgument: the text is no such object; names the place, and the field that is wrong.
        """
        _, content = HEAD.parse(text, place)
        plan: Any = content.get("plan")
        epochs: Any = content.get("epochs")
        history: Any = content.get("history")
        left: Any = content.get("left_to_keras", {})
        problems = {
            "plan must be a text": not isinstance(plan, str),
            "epochs must be a list of numbers": not _is_list(epochs, int),
            "history must be an object": not isinstance(history, dict),
            "left_to_keras must be an object of texts": not (
                isinstance(left, dict) and all(isinstance(each, str) for each in left.values())
            ),
        }
        for problem, is_wrong in problems.items():
            if is_wrong:
                raise InvalidArgument(f"{place}: {problem}")
        curves: dict[str, tuple[float | None, ...]] = {}
        for name, values in history.items():
            curves |= _curves(name, values, len(epochs), place)
        if len(curves) > _MOST_CURVES:
            raise InvalidArgument(f"{place}: history has {len(curves)} values; at most {_MOST_CURVES} are read")
        return cls(plan, tuple(epochs), curves, left)


def _curves(name: str, values: object, num_epochs: int, place: str) -> dict[str, tuple[float | None, ...]]:
    """The curve of a value; of one with several numbers, for example for each output, one for each of them."""
    if isinstance(values, list) and len(values) == num_epochs:
        if all(map(_is_number, values)):
            return {name: tuple(values)}
        if all(isinstance(each, list) and len(each) == len(values[0]) for each in values):
            columns = list(zip(*values, strict=True))
            if all(map(_is_number, (each for column in columns for each in column))):
                return {f"{name}[{number}]": column for number, column in enumerate(columns)}
    raise InvalidArgument(f"{place}: {name!r:.80} of history must have a number, or as many numbers, for each epoch")


def _is_list(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(each) is kind for each in values)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that is no larger than those of 64 bits, or null."""
    if value is None or (type(value) is int and abs(value) < 1 << 63):
        return True
    return type(value) is float and isfinite(value)
