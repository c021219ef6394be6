"""One comparison of two clocks: a question and its answer.

Reference: Cristian, Probabilistic Clock Synchronization (Distributed Computing 3, 1989).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class ClockReading:
    """A question to another clock and its answer, each time in the same unit.

    The answer was taken at some moment between question and answer. So the other clock is ahead of this one by `ahead`,
    and the error of that is at most `error`.

    Args:
        asked: this clock, before the question was sent.
        theirs: the other clock.
        answered: this clock, after the answer had come.

    Raises:
        InvalidArgument: `answered` is before `asked`.

    Examples:
        >>> reading = hk.clock.ClockReading(asked=1000.0, theirs=5010.0, answered=1008.0)
        >>> reading.ahead, reading.error
        (4006.0, 4.0)
    """

    asked: float
    theirs: float
    answered: float

    def __post_init__(self) -> None:
        if self.answered < self.asked:
            raise InvalidArgument(f"a clock that answered at {self.answered} was asked before, not at {self.asked}")

    @property
    def at(self) -> float:
        """The middle between question and answer, by this clock."""
        return self.asked + (self.answered - self.asked) / 2

    @property
    def ahead(self) -> float:
        """By how much the other clock is ahead of this one."""
        return self.theirs - self.at

    @property
    def error(self) -> float:
        """Largest error of `ahead`: half of the round trip."""
        return (self.answered - self.asked) / 2


def best_reading(readings: Iterable[ClockReading]) -> ClockReading:
    """Return the reading with the smallest error.

    Args:
        readings: of one pair of clocks, taken shortly after each other.

    Raises:
        InvalidArgument: there is none.

    Examples:
        >>> slow, fast = hk.clock.ClockReading(0, 105, 10), hk.clock.ClockReading(20, 121, 22)
        >>> hk.clock.best_reading([slow, fast]).ahead
        100.0
    """
    best = min(readings, key=lambda reading: reading.error, default=None)
    if best is None:
        raise InvalidArgument("at least one reading is needed")
    return best
