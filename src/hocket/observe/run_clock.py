"""The one time axis of a recorded run: seconds of the first host's monotonic clock since the run began."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from hocket import _native
from hocket.clock import ClockLine, ClockReading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Anchor = tuple[int, int]
"""Ticks and nanoseconds of a host's monotonic clock at one moment."""
_MOST_ANCHORS = 256
_READINGS_PER_LINE = 32


class AnchorSeries:
    """Anchors of this host, taken in growing intervals, so that a run of any length has a few hundred.

    Args:
        interval_s: seconds between the first ones.

    Attributes:
        anchors: oldest first; never empty.

    Examples:
        >>> from hocket.observe.run_clock import AnchorSeries
        >>> len(AnchorSeries().anchors)
        1
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self.anchors: list[Anchor] = []
        self._next_s = 0.0
        self.take()

    def take(self, *, at_once: bool = False) -> None:
        """Take an anchor if it is time for one.

        Args:
            at_once: whether to take it in any case, as at the end.
        """
        now_s = monotonic()
        if not at_once and now_s < self._next_s:
            return
        self.anchors.append(_native.clock_anchor())
        if len(self.anchors) > _MOST_ANCHORS:
            self.anchors = self.anchors[::2]
            self._interval_s *= 2
        self._next_s = now_s + self._interval_s


class RunClock:
    """Converts the ticks of one host to seconds since the run began on the first host.

    Between two anchors of the host the ticks are interpolated. Comparisons with the first host's clock become one line
    for every 32 of them, because over hours the drift of two clocks changes.

    Args:
        anchors: of the host, oldest first; at least two.
        readings: comparisons of its monotonic clock with that of the first host, in nanoseconds, oldest first; none if
            it is the same clock.
        origin_ns: the first host's monotonic clock when the run began.

    Examples:
        >>> from hocket.observe import RunClock
        >>> clock = RunClock([(1000, 0), (3000, 1_000_000)], [], origin_ns=0)
        >>> float(clock.seconds(2000)), clock.error_s
        (0.0005, 0.0)
    """

    def __init__(self, anchors: Sequence[Anchor], readings: Sequence[ClockReading], origin_ns: int) -> None:
        self._anchors = list(anchors)
        self._origin_ns = origin_ns
        parts = [readings[begin : begin + _READINGS_PER_LINE] for begin in range(0, len(readings), _READINGS_PER_LINE)]
        if len(parts) > 1 and len(parts[-1]) < _READINGS_PER_LINE // 2:  # a few at the end make no line
            parts[-2:] = [[*parts[-2], *parts[-1]]]
        self._lines = [ClockLine(part) for part in parts]
        self._begins = [part[0].at for part in parts]

    def seconds(self, ticks: ArrayLike) -> NDArray[np.float64]:
        """Return the seconds since the run began.

        Args:
            ticks: such as ``events["t_begin"]``; of any shape.
        """
        import numpy as np

        at_ns = _monotonic_ns(np.asarray(ticks), self._anchors)
        ahead_ns = np.zeros_like(at_ns)
        if self._lines:
            of_line = np.searchsorted(self._begins, at_ns, side="right") - 1
            for number, (begin, line) in enumerate(zip(self._begins, self._lines, strict=True)):
                own = line.ahead(begin) + line.drift * (at_ns - begin)
                ahead_ns = np.where(np.maximum(of_line, 0) == number, own, ahead_ns)
        return np.asarray(at_ns + ahead_ns - self._origin_ns) * 1e-9

    @property
    def error_s(self) -> float:
        """The largest error of the comparison with the first host's clock, during the run."""
        if not self._lines:
            return 0.0
        return max(self._line_at(ns).error(ns) for _, ns in self._anchors) * 1e-9

    def _line_at(self, at_ns: float) -> ClockLine:
        return self._lines[max(bisect_right(self._begins, at_ns) - 1, 0)]


def _monotonic_ns(ticks: NDArray[np.generic], anchors: list[Anchor]) -> NDArray[np.float64]:
    """Interpolate between anchors; before the first and after the last one with the mean rate of all."""
    import numpy as np

    first_ticks, first_ns = anchors[0]
    known_ticks = np.array([each - first_ticks for each, _ in anchors], np.float64)
    known_ns = np.array([each - first_ns for _, each in anchors], np.float64)
    at = (ticks.astype(np.int64) - first_ticks).astype(np.float64)
    rate = known_ns[-1] / known_ticks[-1] if known_ticks[-1] > 0 else 0.0
    found = np.interp(at, known_ticks, known_ns)
    found = np.where(at < 0, at * rate, found)
    found = np.where(at > known_ticks[-1], known_ns[-1] + (at - known_ticks[-1]) * rate, found)
    return found + first_ns
