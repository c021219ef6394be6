"""Trials: the present carrier of some operations and another one alternate while a program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from hocket.comm.policy import Range, format_nbytes
from hocket.measure.statistics import MIN_VALUES, Ratio, ratio
from hocket.tune.policy import merge_equal_ranges
from hocket.tune.window import Cell

LEAST_GAIN = 1.05
_HOPELESS = 1.5  # ratio to the time of the present carrier; a challenger above it in all of the first pairs is dropped
_FIRST_PAIRS = 2
_MIN_TIMES = 3
_LEAST_SECONDS = 1e-9  # an asynchronous operation may block its callers for no time


@dataclass(frozen=True)
class Lesson:
    """The result of a trial.

    Args:
        seq: number of the collective before which the trial ended; a change takes effect there.
        cell: the operations of the trial.
        nbytes: the most frequent of their sizes.
        incumbent, challenger: the present and the other carrier, as in `Range.ranking`.
        speed: how many times as fast the challenger is; None if it was dropped after a few windows, or if one of the
            two had too few operations.
        is_hopeless: whether the challenger was dropped.
        changed: whether the challenger carries the operations from now on.
    """

    seq: int
    cell: Cell
    nbytes: int
    incumbent: str
    challenger: str
    speed: Ratio | None
    is_hopeless: bool
    changed: bool

    def __str__(self) -> str:
        sizes = f"{format_nbytes(self.cell.least_nbytes)} to {format_nbytes(self.cell.most_nbytes + 1)}"
        unknown = "dropped as much slower" if self.is_hopeless else "too few operations"
        speed = unknown if self.speed is None else format_speed(self.speed)
        verdict = "changed" if self.changed else "stays"
        return f"{self.seq}: {self.cell.op} of {sizes}: {self.challenger} against {self.incumbent}: {speed}; {verdict}"


def format_speed(speed: Ratio) -> str:
    """Format how many times as fast something is, e.g. "1.31 times [1.22, 1.38] as fast"."""
    return f"{speed.median:.2f} times [{speed.low:.2f}, {speed.high:.2f}] as fast"


@dataclass
class Trial:
    """Two carriers that alternate in pairs of windows. Their order differs between pairs and between trials.

    Args:
        cell, nbytes, incumbent, challenger: as in `Lesson`.
        num_pairs: number of pairs of windows.
        number: number of the trial among simultaneous trials, from 0. No two of the first four trials have the same
            order in both of the first pairs. So if one challenger slows down other operations, their trials do not
            attribute this to their own challengers.
    """

    cell: Cell
    nbytes: int
    incumbent: str
    challenger: str
    num_pairs: int
    number: int = 0
    is_blocking: bool = True
    _medians: dict[tuple[int, str], float] = field(default_factory=dict)

    def carrier(self, phase: int) -> str:
        """Return the carrier of a window."""
        challenger_is_first = (phase // 2 + 1 & self.number + 1).bit_count() % 2 == 1
        is_challengers = (phase % 2 == 0) == challenger_is_first
        return self.challenger if is_challengers and not self.is_hopeless else self.incumbent

    def add(self, phase: int, seconds: Mapping[str, Sequence[float]], is_blocking: bool) -> None:
        """Add the times of the cell's operations in a window, by carrier."""
        self.is_blocking &= is_blocking
        carrier = self.carrier(phase)
        times = seconds.get(carrier, ())
        if len(times) >= _MIN_TIMES:
            self._medians[phase // 2, carrier] = max(_LEAST_SECONDS, median(times))

    @property
    def is_hopeless(self) -> bool:
        """Whether the challenger is dropped, and gets no further window."""
        pairs = self._pairs()[:_FIRST_PAIRS]
        return len(pairs) == _FIRST_PAIRS and all(theirs > _HOPELESS * ours for ours, theirs in pairs)

    @property
    def speed(self) -> Ratio | None:
        """How many times as fast the challenger is; None if it was dropped, or has too few windows."""
        pairs = self._pairs()
        if self.is_hopeless or len(pairs) < MIN_VALUES:
            return None
        return ratio([theirs for _, theirs in pairs], [ours for ours, _ in pairs])

    @property
    def is_won(self) -> bool:
        """Whether the challenger is significantly faster, and by at least `LEAST_GAIN`."""
        speed = self.speed
        return speed is not None and speed.low > 1 and speed.median >= LEAST_GAIN

    @property
    def is_undecided(self) -> bool:
        """Whether the challenger seems to be faster by at least `LEAST_GAIN`, but not significantly."""
        speed = self.speed
        return speed is not None and speed.median >= LEAST_GAIN and not self.is_won

    def seconds(self, carrier: str) -> list[float]:
        """Return the medians of all windows of one carrier."""
        return [seconds for (_, name), seconds in self._medians.items() if name == carrier]

    def conclude(self, seq: int) -> Lesson:
        """Return the result of the trial, before the collective with number `seq`."""
        return Lesson(
            seq, self.cell, self.nbytes, self.incumbent, self.challenger, self.speed, self.is_hopeless, self.is_won
        )

    def _pairs(self) -> list[tuple[float, float]]:
        """Return the seconds of the incumbent and of the challenger, for the pairs with both."""
        both = ((self._medians.get((pair, self.incumbent)), self._medians.get((pair, self.challenger)))
                for pair in range(self.num_pairs))  # fmt: skip
        return [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]


def cut(ranges: Sequence[Range], cell: Cell, ranking: tuple[str, ...], reason: str = "") -> list[Range]:
    """Return ranges that are cut at the borders of a cell, whose sizes get their own ranking.

    Args:
        ranges: ranges in order of size; the last one has no upper limit.
        cell: cell whose sizes get the ranking.
        ranking, reason: ranking and reason of the new range.
    """
    found: list[Range] = []
    least = 0
    for each in ranges:
        if least < cell.least_nbytes:
            found.append(replace(each, most_nbytes=min(each.most_nbytes, cell.least_nbytes - 1)))
        if least <= cell.most_nbytes and each.most_nbytes >= cell.least_nbytes:
            found.append(Range(min(each.most_nbytes, cell.most_nbytes), ranking, reason))
        if each.most_nbytes > cell.most_nbytes:
            found.append(each)
        least = each.most_nbytes + 1
    return merge_equal_ranges(found)
