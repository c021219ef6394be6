"""Lines through readings of two clocks whose offset and drift are known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hocket.clock import ClockLine, ClockReading, best_reading
from hocket.errors import InvalidArgument

from ..naming import raises

pytestmark = pytest.mark.timeout(30)


def _readings(ahead, drift, seed, num, every, most_trip):
    """Readings of a clock that is `ahead` at 0 and drifts; the answer is taken anywhere within the round trip."""
    rng = random.Random(seed)
    for number in range(num):
        asked = number * every + rng.random()
        trip = rng.uniform(0.1, 1.0) * most_trip
        taken = asked + rng.random() * trip
        yield ClockReading(asked, taken + ahead + drift * taken, asked + trip)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("drift", [0.0, 37e-6, -90e-6])
def test_the_error_is_within_its_bound(seed: int, drift: float) -> None:
    ahead, every, most_trip = 123_000_000.0, 100_000_000.0, 40_000.0  # nanoseconds: 123 ms, 10 a second, 40 us
    line = ClockLine(_readings(ahead, drift, seed, 50, every, most_trip))
    for at in np.linspace(0, 50 * every, 101):
        if at <= 49 * every:
            assert abs(line.ahead(at) - (ahead + drift * at)) <= line.error(at)
    # Between readings the bound is less than two round trips; beyond them it grows.
    assert line.error(25 * every) < 2 * most_trip
    assert line.error(100 * every) > line.error(25 * every)
    assert abs(line.drift - drift) < 2e-6
    at = 200 * every
    assert abs(line.ahead(at) - (ahead + drift * at)) <= line.error(at)


def test_numpy_fits_the_same_line() -> None:
    readings = list(_readings(500.0, 20e-6, 7, 30, 1e6, 300.0))
    line = ClockLine(readings)
    slope, offset = np.polyfit([each.at for each in readings], [each.ahead for each in readings], 1)
    assert line.drift == pytest.approx(slope, rel=1e-6)
    assert line.ahead(0.0) == pytest.approx(offset, rel=1e-9)


def test_only_the_window_counts() -> None:
    line = ClockLine(window=4)
    for number in range(10):
        line.add(ClockReading(number, number + (100 if number < 6 else 200), number))
    assert (line.ahead(8.0), line.drift) == (200.0, 0.0)


def test_one_reading_says_nothing_about_the_drift() -> None:
    line = ClockLine([ClockReading(0.0, 50.0, 10.0)])
    assert (line.ahead(5.0), line.error(5.0)) == (45.0, 5.0)
    assert line.error(5.0 + 1e6) == pytest.approx(5.0 + 200.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_long_after_readings_that_are_close_together(seed: int) -> None:
    """Then the line may be much steeper than any drift."""
    line = ClockLine(_readings(1000.0, 37e-6, seed, 4, 2e3, 500.0))
    for at in (1e5, 1e7, 1e9):
        assert abs(line.ahead(at) - (1000.0 + 37e-6 * at)) <= line.error(at)


def test_what_is_refused() -> None:
    with raises(InvalidArgument, names=("0",)):
        ClockLine(window=0)
    with raises(InvalidArgument, names=("5", "10")):
        ClockReading(10, 0, 5)
    with raises(InvalidArgument, names=()):
        best_reading([])
    with raises(InvalidArgument, names=()):
        ClockLine().ahead(0.0)
    line = ClockLine([ClockReading(10, 0, 10)])
    with raises(InvalidArgument, names=("5.0", "10.0")):
        line.add(ClockReading(5, 0, 5))
    assert line.ahead(10) == -10
