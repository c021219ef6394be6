"""The difference of two clocks over time: an offset, a drift, and a bound of the error."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hocket.clock.reading import ClockReading
from hocket.errors import InvalidArgument

_MOST_DRIFT = 200e-6
"""Crystal oscillators of computers are within 100 ppm of their rate; so two differ by at most this."""


class ClockLine:
    """By how much another clock is ahead of this one, at any moment.

    A least-squares line through the latest readings. Between two readings the error is at most the largest distance of
    a reading from the line plus that reading's own error, if the clocks drift evenly from one reading to the next.
    Beyond the readings it grows with the time: by what the drift may be wrong.

    Args:
        readings: the first ones, oldest first.
        window: at most so many of the latest readings count.

    Raises:
        InvalidArgument: `window` is less than 1.

    Examples:
        >>> readings = [hk.clock.ClockReading(t, t * 1.0001 + 500, t) for t in (0.0, 1000.0, 2000.0)]
        >>> line = hk.clock.ClockLine(readings)
        >>> round(line.ahead(1500.0), 6), round(line.drift * 1e6, 3)
        (500.15, 100.0)
    """

    def __init__(self, readings: Iterable[ClockReading] = (), window: int = 64) -> None:
        if window < 1:
            raise InvalidArgument(f"a window has at least one reading, not {window}")
        self._readings: deque[ClockReading] = deque(maxlen=window)
        self._origin = 0.0
        self._offset = 0.0
        self._largest_error = 0.0
        self.drift = 0.0
        """By how much the other clock is faster: 1e-6 is a microsecond each second."""
        for reading in readings:
            self._append(reading)
        if self._readings:
            self._fit()

    def add(self, reading: ClockReading) -> None:
        """Add a reading that is newer than all others.

        Args:
            reading: best of a burst, see `best_reading`.

        Raises:
            InvalidArgument: it is older than the last one.
        """
        self._append(reading)
        self._fit()

    def ahead(self, at: float) -> float:
        """Return by how much the other clock is ahead.

        Args:
            at: a time by this clock.

        Raises:
            InvalidArgument: there is no reading.
        """
        self._check()
        return self._offset + self.drift * (at - self._origin)

    def error(self, at: float) -> float:
        """Return the largest error of `ahead`.

        Args:
            at: a time by this clock.

        Raises:
            InvalidArgument: there is no reading.
        """
        self._check()
        first, last = self._readings[0].at, self._readings[-1].at
        beyond = max(first - at, at - last, 0.0)
        between = last - first
        # The line may be steeper than any drift, where the readings are few or close together.
        wrong_drift = abs(self.drift) + _MOST_DRIFT
        if between > 0:
            wrong_drift = min(wrong_drift, 2 * self._largest_error / between)
        return self._largest_error + beyond * wrong_drift

    def to_theirs(self, at: float) -> float:
        """Return what the other clock shows when this one shows `at`.

        Args:
            at: a time by this clock.

        Raises:
            InvalidArgument: there is no reading.
        """
        return at + self.ahead(at)

    def _append(self, reading: ClockReading) -> None:
        if self._readings and reading.at < self._readings[-1].at:
            raise InvalidArgument(f"readings are added in order: {reading.at} comes before {self._readings[-1].at}")
        self._readings.append(reading)

    def _check(self) -> None:
        if not self._readings:
            raise InvalidArgument("the clocks have not been compared: add a reading")

    def _fit(self) -> None:
        readings = self._readings
        self._origin = sum(reading.at for reading in readings) / len(readings)
        self._offset = sum(reading.ahead for reading in readings) / len(readings)
        times = [reading.at - self._origin for reading in readings]
        spread = sum(time * time for time in times)
        self.drift = (
            sum(time * (reading.ahead - self._offset) for time, reading in zip(times, readings, strict=True)) / spread
            if spread > 0
            else 0.0
        )
        self._largest_error = max(abs(self.ahead(each.at) - each.ahead) + each.error for each in readings)
