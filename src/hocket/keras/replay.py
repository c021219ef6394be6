"""Operations of a Keras model that are run by Keras twice, and from then on by the torch calls that it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias

import keras
import torch
from keras.src import backend

from hocket.keras.capture import Capture, Captured, Obstacle

Run: TypeAlias = Callable[[], list[Any]]  # the operation by Keras, on tensors that are given: what it makes, flat

_MOST_LOOKS = 16  # of tensors, for which captures are kept
_OF_KERAS = ("keras", "torch", "builtins")  # packages whose code does the same every time
_OUTSIDE_OF_CALLS = ("_initializer", "_regularizer", "_constraint")
_PLAIN = (bool, int, float, str, type(None), tuple)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Replays:
    """One operation, on tensors of any look. What is captured holds as long as its parts are set as they were.

    Args:
        parts: layers, functions and regularizers whose code runs.
        variables: that they read or write.
        arguments: that they are called with beside tensors.
    """

    def __init__(self, parts: Sequence[Any], variables: Sequence[Any], arguments: Sequence[Any] = ()) -> None:
        self._parts, self._variables, self._arguments = parts, variables, arguments
        self._by_look: dict[Any, Replay] = {}
        self.forget()

    def of(self, tensors: Sequence[torch.Tensor], is_training: bool) -> Replay:
        """Return that for tensors of such a look."""
        look = (
            is_training,
            torch.is_grad_enabled(),
            *[(each.shape, each.stride(), each.dtype, each.device) for each in tensors],
        )
        found = self._by_look.get(look)
        if found is None:
            found = Replay(self._parts, self._variables, self._obstacle)
            if len(self._by_look) < _MOST_LOOKS:
                self._by_look[look] = found
            elif found.obstacle is None:
                found.obstacle = f"its tensors have more than {_MOST_LOOKS} shapes"
        return found

    @property
    def obstacle(self) -> str | None:
        """Why Keras was not left out, where it was not, in the call that was seen first."""
        return next((each.obstacle for each in self._by_look.values() if each.obstacle), None)

    @property
    def is_captured(self) -> bool:
        """Whether Keras is left out for some tensors."""
        return any(each.captured is not None for each in self._by_look.values())

    def forget_if_set_otherwise(self) -> None:
        """Begin anew if somebody has set a part, or a variable, since."""
        are_same = all(
            len(now) == len(before) and all(map(is_, now.values(), before)) and not any(map(len, _hooks_of(now)))
            for now, before in self._settings
        )
        if not are_same or any(each._value is not value for each, value in self._values):
            self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._by_look.clear()
        self._obstacle = _obstacle_of(self._parts, self._arguments)
        self._values = [(each, each._value) for each in self._variables]
        self._settings = [(vars(each), list(vars(each).values())) for each in self._parts]


class Replay:
    """An operation on tensors of one look.

    The first time, what Keras calls of torch is captured. The second time, on other content, it is done both ways, and
    has to be the same bit for bit, with all that it writes to variables and draws of random numbers. From then on Keras
    is left out.

    Args:
        parts, variables: as of `Replays`.
        obstacle: why it is always left to Keras; None: nothing is known.

    Attributes:
        captured: what takes Keras' place, once it has been compared.
        obstacle: why Keras is not left out, if it is not.
    """

    def __init__(self, parts: Sequence[Any], variables: Sequence[Any], obstacle: str | None) -> None:
        self._parts, self._variables = parts, variables
        self._candidate: Captured | None = None
        self.captured: Captured | None = None
        self.obstacle = obstacle

    def run(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> Sequence[Any]:
        """Return what the operation makes of tensors."""
        if self.captured is not None:
            return self.captured(*tensors)
        if self.obstacle is not None:
            return by_keras()
        return self._capture(tensors, by_keras) if self._candidate is None else self._compare(tensors, by_keras)

    def _capture(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> list[Any]:
        capture = Capture(tensors)
        with capture:
            found = by_keras()
        try:
            if any(backend.get_keras_mask(each) is not None for each in (*tensors, *found)):
                raise Obstacle("its tensors have masks")
            if any(isinstance(each, keras.Layer) and each._get_own_losses() for each in self._parts):
                raise Obstacle("it adds to the loss")
            self._candidate = capture.finish(found)
        except Obstacle as obstacle:
            self.obstacle = str(obstacle)
        return found

    def _compare(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> list[Any]:
        assert self._candidate is not None
        values = [each.value for each in self._variables]
        before = [value.detach().clone() for value in values]
        random_before = torch.get_rng_state()
        with torch.no_grad():
            mine = list(self._candidate(*(each.detach() for each in tensors)))
        with torch.no_grad():
            mine = [each.detach().clone() for each in (*mine, *values)]
            random_mine = torch.get_rng_state()
            torch.set_rng_state(random_before)
            for value, old in zip(values, before, strict=True):
                if not _equal(value, old):  # what has not changed may be wanted by a backward pass
                    value.copy_(old)
        found = by_keras()
        right = [*found, *(each.value for each in self._variables)]
        is_same = len(mine) == len(right) and all(map(_equal, mine, right))
        if is_same and torch.equal(random_mine, torch.get_rng_state()):
            self.captured = self._candidate
        else:
            self.obstacle = "what it calls of torch depends on more than the shapes of its tensors"
        self._candidate = None
        return found


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _obstacle_of(parts: Sequence[Any], arguments: Sequence[Any]) -> str | None:
    """Why an operation cannot do without Keras, as far as that is to be seen beforehand: code that is not Keras' own
    may do something else every time."""
    for each in parts:
        if not _is_of_keras(type(each)):
            return f"{type(each).__name__} is a class of your own"
        attributes, what = vars(each), repr(getattr(each, "name", type(each).__name__))
        for name, value in attributes.items():
            if callable(value) and not name.endswith(_OUTSIDE_OF_CALLS) and not _is_of_keras(value):
                return f"{name} of {what} is a function of your own"
        if any(map(len, _hooks_of(attributes))):
            return f"{what} has hooks"
    for value in arguments:
        if not isinstance(value, _PLAIN):
            return f"it is called with a {type(value).__name__}"
    return None


def _is_of_keras(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module.partition(".")[0] in _OF_KERAS


def _hooks_of(attributes: Mapping[str, Any]) -> list[Any]:
    return [attributes.get(name, ()) for name in _HOOKS]
