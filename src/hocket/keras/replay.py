"""Operations of a Keras model that Keras runs twice, and that are then replayed as the torch calls that it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import torch
from keras.src import backend

from hocket.keras.capture import Capture, Captured, Obstacle
from hocket.keras.parts import ModelParts

Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[Any]]  # inputs of an operation -> its flat outputs

_MOST_SPECS = 16  # captures that are kept for an operation
_OTHER_CALLS = "its torch calls depend on more than the shapes of its tensors"


class Replays:
    """One operation, on tensors of any shapes and types. Captures are valid until a part changes.

    Args:
        parts: the objects whose code runs.
    """

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts
        self._by_spec: dict[Any, OperationReplay] = {}
        self._obstacle = parts.obstacle()

    def of(self, tensors: Sequence[torch.Tensor], is_training: bool) -> OperationReplay:
        """Return the replay for tensors with these shapes, strides, types and devices."""
        ids = list(map(id, tensors))
        spec = (
            is_training,
            torch.is_grad_enabled(),
            *[(each.shape, each.stride(), each.dtype, each.device) for each in tensors],
            # Which of them are the same object: the recorded calls do not distinguish these.
            *map(ids.index, ids),
        )
        replay = self._by_spec.get(spec)
        if replay is None:
            replay = OperationReplay(self._parts, self._obstacle)
            if len(self._by_spec) < _MOST_SPECS:
                self._by_spec[spec] = replay
            elif replay.obstacle is None:
                replay.obstacle = f"its tensors have more than {_MOST_SPECS} shapes"
        return replay

    @property
    def obstacle(self) -> str | None:
        """The first reason why Keras runs the operation, or None."""
        return next((each.obstacle for each in self._by_spec.values() if each.obstacle), None)

    @property
    def is_captured(self) -> bool:
        """Whether the operation runs without Keras for some tensors."""
        return any(each.captured is not None for each in self._by_spec.values())

    def forget_if_changed(self) -> None:
        """Discard all captures if a part or a variable has changed."""
        if self._parts.have_changed():
            self._by_spec.clear()
            self._parts.remember()
            self._obstacle = self._parts.obstacle()


class OperationReplay:
    """An operation on tensors of one spec.

    The first call captures Keras' torch calls. The second call, on other content, runs both ways, and compares bit for
    bit: results, their gradients, writes to variables, and draws of random numbers. All later calls run without Keras.

    Args:
        parts: see `Replays`.
        obstacle: why Keras must always run the operation; None: no reason is known.

    Attributes:
        captured: the function that replaces Keras, after the comparison; None: Keras runs the operation.
        obstacle: why Keras runs the operation, or None.
    """

    def __init__(self, parts: ModelParts, obstacle: str | None) -> None:
        self._parts = parts
        self._candidate: Captured | None = None
        self.captured: Captured | None = None
        self.obstacle = obstacle

    def run(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> Sequence[Any]:
        """Return the outputs of the operation."""
        if self.captured is not None:
            return self.captured(*tensors)
        if self.obstacle is None:
            if self._candidate is None:
                return self._capture(tensors, by_keras)
            self._compare(tensors, by_keras)
        return by_keras(tensors)

    def _capture(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> Sequence[Any]:
        with Capture(tensors) as capture:
            outputs = by_keras(tensors)
        try:
            if any(backend.get_keras_mask(each) is not None for each in (*tensors, *outputs)):
                raise Obstacle("its tensors have masks")
            if any(isinstance(each, keras.Layer) and each._get_own_losses() for each in self._parts.objects):
                raise Obstacle("it adds to the loss")
            if {id(each.value) for each in self._parts.variables} & set(map(id, tensors)):
                raise Obstacle("it takes one of its own variables")
            self._candidate = capture.finish(outputs)
        except Obstacle as obstacle:
            self.obstacle = str(obstacle)
        return outputs

    def _compare(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> None:
        candidate, self._candidate = self._candidate, None
        assert candidate is not None
        try:
            expected = self._outcome(by_keras, tensors)
            replayed = self._outcome(lambda copies: candidate(*copies), tensors)
            is_same = len(replayed) == len(expected) and all(map(_equal, replayed, expected))
        except Exception:  # the operation cannot be repeated, or not on copies
            is_same = False
        if is_same:
            self.captured = candidate
        else:
            self.obstacle = _OTHER_CALLS

    def _outcome(self, run: Run, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return all effects of the operation on copies of tensors: results, variables, random states, and gradients
        for some gradients of the results. Variables and random states are restored."""
        copies = {id(each): each.detach().clone().requires_grad_(each.requires_grad) for each in tensors}
        leaves = [copies[id(each)] for each in tensors]
        inputs = {id(leaf): leaf.clone() for leaf in leaves}  # a leaf that requires a gradient must not be written to
        variables = [each.value for each in self._parts.variables]
        before = [value.detach().clone() for value in variables]
        random_before = _random_states()
        try:
            results = run([inputs[id(leaf)] for leaf in leaves])
            effects: list[torch.Tensor | None] = [each.detach().clone() for each in (*results, *variables)]
            effects += _random_states()
            roots = [each for each in results if each.requires_grad]
            differentiated = [each for each in (*leaves, *variables) if each.requires_grad]
            if roots and differentiated:
                gradients = [torch.arange(each.numel()).remainder(7).sub(2).to(each).view(each.shape) for each in roots]
                effects += torch.autograd.grad(roots, differentiated, gradients, allow_unused=True)
            return effects
        finally:
            with torch.no_grad():
                for value, old in zip(variables, before, strict=True):
                    if not _equal(value, old):  # a write to an unchanged variable could break a pending backward pass
                        value.copy_(old)
            _set_random_states(random_before)


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Return whether two tensors are equal bit for bit."""
    if a is None or b is None:
        return a is b
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    first, second = (each.detach().reshape(-1).view(torch.uint8) for each in (a, b))
    return torch.equal(first, second)


def _random_states() -> list[torch.Tensor]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *devices]


def _set_random_states(states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
