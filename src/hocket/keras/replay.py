"""Operations of a Keras model that are run by Keras twice, and from then on by the torch calls that it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import torch
from keras.src import backend

from hocket.keras.capture import Capture, Captured, Obstacle
from hocket.keras.parts import ModelParts

Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[Any]]  # of tensors, what the operation makes of them, flat

_MOST_LOOKS = 16  # of tensors, for which captures are kept
_OTHER_CALLS = "what it calls of torch depends on more than the shapes of its tensors"


class Replays:
    """One operation, on tensors of any look. What is captured holds as long as its parts are set as they were.

    Args:
        parts: whose code runs.
    """

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts
        self._by_look: dict[Any, OperationReplay] = {}
        self._obstacle = parts.obstacle()

    def of(self, tensors: Sequence[torch.Tensor], is_training: bool) -> OperationReplay:
        """Return that for tensors of such a look."""
        ids = list(map(id, tensors))
        look = (
            is_training,
            torch.is_grad_enabled(),
            *[(each.shape, each.stride(), each.dtype, each.device) for each in tensors],
            # Which of them are one object, as the calls do not tell these apart.
            *map(ids.index, ids),
        )
        found = self._by_look.get(look)
        if found is None:
            found = OperationReplay(self._parts, self._obstacle)
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
        if self._parts.are_set_otherwise():
            self._by_look.clear()
            self._parts.remember()
            self._obstacle = self._parts.obstacle()


class OperationReplay:
    """An operation on tensors of one look.

    The first time, what Keras calls of torch is captured. The second time, on other content, it is done both ways, and
    has to be the same bit for bit: results, their gradients, what is written to variables, what is drawn of random
    numbers. From then on Keras is left out.

    Args:
        parts: as of `Replays`.
        obstacle: why it is always left to Keras; None: nothing is known.

    Attributes:
        captured: what takes Keras' place, once it has been compared.
        obstacle: why Keras is not left out, if it is not.
    """

    def __init__(self, parts: ModelParts, obstacle: str | None) -> None:
        self._parts = parts
        self._candidate: Captured | None = None
        self.captured: Captured | None = None
        self.obstacle = obstacle

    def run(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> Sequence[Any]:
        """Return what the operation makes of tensors."""
        if self.captured is not None:
            return self.captured(*tensors)
        if self.obstacle is None:
            if self._candidate is None:
                return self._capture(tensors, by_keras)
            self._compare(tensors, by_keras)
        return by_keras(tensors)

    def _capture(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> Sequence[Any]:
        with Capture(tensors) as capture:
            found = by_keras(tensors)
        try:
            if any(backend.get_keras_mask(each) is not None for each in (*tensors, *found)):
                raise Obstacle("its tensors have masks")
            if any(isinstance(each, keras.Layer) and each._get_own_losses() for each in self._parts.objects):
                raise Obstacle("it adds to the loss")
            if {id(each.value) for each in self._parts.variables} & set(map(id, tensors)):
                raise Obstacle("it takes one of its own variables")
            self._candidate = capture.finish(found)
        except Obstacle as obstacle:
            self.obstacle = str(obstacle)
        return found

    def _compare(self, tensors: Sequence[torch.Tensor], by_keras: Run) -> None:
        candidate, self._candidate = self._candidate, None
        assert candidate is not None
        try:
            right = self._outcome(by_keras, tensors)
            mine = self._outcome(lambda copies: candidate(*copies), tensors)
            is_same = len(mine) == len(right) and all(map(_equal, mine, right))
        except Exception:  # what Keras did once cannot be done again, or not for copies
            is_same = False
        if is_same:
            self.captured = candidate
        else:
            self.obstacle = "what it calls of torch depends on more than the shapes of its tensors"

    def _outcome(self, run: Run, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """All that comes of the operation on copies of tensors, gradients for some gradients of its results included.
        Variables and random numbers are put back."""
        copies = {id(each): each.detach().clone().requires_grad_(each.requires_grad) for each in tensors}
        leaves = [copies[id(each)] for each in tensors]
        given = {id(leaf): leaf.clone() for leaf in leaves}  # as leaves themselves must not be written to
        variables = [each.value for each in self._parts.variables]
        before = [value.detach().clone() for value in variables]
        random_before = _random_states()
        try:
            results = run([given[id(leaf)] for leaf in leaves])
            found: list[torch.Tensor | None] = [each.detach().clone() for each in (*results, *variables)]
            found += _random_states()
            roots = [each for each in results if each.requires_grad]
            wanted = [each for each in (*leaves, *variables) if each.requires_grad]
            if roots and wanted:
                gradients = [torch.arange(each.numel()).remainder(7).sub(2).to(each).view(each.shape) for each in roots]
                found += torch.autograd.grad(roots, wanted, gradients, allow_unused=True)
            return found
        finally:
            with torch.no_grad():
                for value, old in zip(variables, before, strict=True):
                    if not _equal(value, old):  # what has not changed may be wanted by a backward pass
                        value.copy_(old)
            _set_random_states(random_before)


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors are the same bit for bit."""
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
