"""The program of one rank, for schedules that process micro-batches in order for each kind and stage."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hocket.pipeline.action import Action


class Program:
    """The actions of a rank, written for enough micro-batches to fill the pipeline.

    Actions of micro-batches that do not exist are left out. The order works with more micro-batches, so it also works
    with fewer.

    Args:
        micro_batches: existing micro-batches of every pipe.
    """

    def __init__(self, *micro_batches: Sequence[int]) -> None:
        self.actions: list[Action] = []
        self._micro_batches = micro_batches
        self._begun: Counter[tuple[str, int, int]] = Counter()
        self._weights: deque[tuple[int, int, int]] = deque()
        self._previous_exists = False

    def add(self, kinds: str, stage: int, pipe: int = 0, *, with_previous: bool = False) -> None:
        """Add actions of a stage, each for the next micro-batch of its kind.

        Args:
            kinds: F, B, I or several of them; the weight gradient of I is added later by `add_weights`.
            stage, pipe: stage and pipe of the actions.
            with_previous: whether the action overlaps with the previous one.
        """
        for kind in kinds:
            passes = "F" if kind == "F" else "B"
            number = self._begun[passes, stage, pipe]
            self._begun[passes, stage, pipe] += 1
            if kind == "I":
                self._weights.append((stage, pipe, number))
            self._append(kind, stage, pipe, number, with_previous)

    def add_weights(self, times: int = 1, stage: int | None = None) -> None:
        """Add the oldest deferred weight gradients, of one stage or of any."""
        for _ in range(times):
            waiting = [each for each in self._weights if stage in (None, each[0])]
            if waiting:
                self._weights.remove(waiting[0])
                self._append("W", *waiting[0], False)

    def overlap(self, forward: tuple[int, int], backward: tuple[int, int]) -> None:
        """Add a forward and a backward pass that overlap, each by its stage and pipe."""
        self.add("F", *forward)
        self.add("B", *backward, with_previous=True)

    def _append(self, kind: str, stage: int, pipe: int, number: int, with_previous: bool) -> None:
        micro_batches = self._micro_batches[pipe]
        exists = number < len(micro_batches)
        if exists:
            overlaps = with_previous and self._previous_exists
            self.actions.append(Action(kind, stage, micro_batches[number], pipe=pipe, with_previous=overlaps))
        self._previous_exists = exists
