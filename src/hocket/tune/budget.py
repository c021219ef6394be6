"""The time limit for measuring a table: cells that do not fit are left out, the largest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SET_UP_ROUNDS = 4  # time of a cell's first calls and its calibration, in rounds


class Budget:
    """A time limit that starts now, equal on all ranks.

    Args:
        seconds: limit of all stages together, in seconds.
        agree: takes this rank's number and returns the largest of all ranks; all ranks call it.
        clock: returns seconds; tests pass their own.
    """

    def __init__(
        self, seconds: float, agree: Callable[[float], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._agree = agree
        self._clock = clock
        self._began_s = clock()
        self.left_out: list[str] = []
        """Descriptions of the cells that did not fit."""

    def left_s(self) -> float:
        """Return the seconds left, at least 0; all ranks call it."""
        return max(0.0, self._seconds - self._agree(self._clock() - self._began_s))

    def affordable(
        self,
        things: Sequence[T],
        seconds: Callable[[T], float],
        rounds: int,
        share: float,
        describe: Callable[[T], str],
    ) -> list[T]:
        """Return the things at the start of the list that fit into the remaining time; all ranks call it.

        Args:
            things: things to measure, the most important first.
            seconds: returns the seconds of one round of a thing; equal on all ranks.
            rounds: number of rounds.
            share: share of the time left that all of them may take together.
            describe: returns a description of a thing, for `left_out`.
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
