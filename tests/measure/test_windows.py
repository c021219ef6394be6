"""Calls that are timed one by one, each begun by all ranks at the same instant."""

import math

import pytest

from hocket.errors import InvalidState
from hocket.measure import Contender
from hocket.measure.windows import calls_in_time, first_window_s, sample_windows

from ..naming import raises

pytestmark = pytest.mark.timeout(60)


class Clock:
    """Goes on by a microsecond whenever it is looked at."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


def windows(durations, period_s, start_s=1e-3):
    """Calls that take so long, one a window."""
    clock = Clock()
    left = iter([0.0, *durations])  # the first one warms up

    def once():
        clock.now += next(left)

    contender = Contender("case", "name", lambda n: [once() for _ in range(n)], once)
    return sample_windows(contender, start_s, period_s, len(durations), lambda: None, clock)


def test_each_call_is_timed_from_the_beginning_of_its_window():
    assert windows([5e-5, 7e-5, 3e-5], 1e-4) == pytest.approx([5e-5, 7e-5, 3e-5], abs=3e-6)


def test_a_call_that_takes_longer_than_its_window_makes_the_next_ones_late():
    found = windows([5e-5, 2.5e-4, 1e-5, 1e-5, 5e-5], 1e-4)
    assert [math.isnan(each) for each in found] == [False, False, True, True, False]
    assert found[1] == pytest.approx(2.5e-4, abs=3e-6)


def test_a_rank_that_hears_of_the_windows_too_late_drops_them():
    assert all(map(math.isnan, windows([1e-5] * 3, 1e-6, start_s=-1.0)))


def test_calls_count_that_all_ranks_began_in_time():
    late = math.nan
    assert calls_in_time([[1.0, 2.0, late], [3.0, late, 1.0]]) == [(1.0, 3.0)]


def test_the_first_window_leaves_time_for_warming_up():
    assert first_window_s(10.0, 1e-3, 100) >= 10.0 + 5 * 1e-3


def test_loops_are_not_timed_one_by_one():
    with raises(InvalidState, names=("name", "case")):
        sample_windows(Contender("case", "name", lambda n: None), 0.0, 1.0, 1, lambda: None, Clock())
