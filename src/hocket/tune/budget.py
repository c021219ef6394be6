"""Seconds that measuring a table may take, and what fits in them: what is large is left out first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SET_UP_ROUNDS = 4  # that a cell's first calls and its calibration take, in rounds of it


class Budget:
    """A number of seconds from now on, which all ranks see alike.

    Args:
        seconds: of all stages.
        agree: gets a number of this rank and returns the largest of all ranks; called by all of them.
        clock: seconds; tests give their own.
    """

    def __init__(
        self, seconds: float, agree: Callable[[float], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._agree = agree
        self._clock = clock
        self._began_s = clock()
        self.left_out: list[str] = []
        """What did not fit, in words."""

    def left_s(self) -> float:
        """Return how much is left, 0 at least; called by all ranks."""
        return max(0.0, self._seconds - self._agree(self._clock() - self._began_s))

    def affordable(
        self,
        things: Sequence[T],
        seconds: Callable[[T], float],
        rounds: int,
        share: float,
        describe: Callable[[T], str],
    ) -> list[T]:
        """Return those of some things that can be measured, from the first one on; called by all ranks.

        Args:
            things: what is the most important first.
            seconds: that one round of a thing takes, the same on all ranks.
            rounds: that are wanted.
            share: of what is left, for all of them.
            describe: a thing in words, for `left_out`.
        """
        left_s = share * self.left_s()
        kept = []
        for number, thing in enumerate(things):
            left_s -= (rounds + SET_UP_ROUNDS) * seconds(thing)
            if left_s < 0:
                self.left_out += [describe(each) for each in things[number:]]
                break
            kept.append(thing)
        return kept
