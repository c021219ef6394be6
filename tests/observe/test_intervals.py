"""Unions of intervals against sets of small steps."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe.analysis.intervals import IntervalSet


def _steps(begins: np.ndarray, ends: np.ndarray) -> set[int]:
    return {step for begin, end in zip(begins, ends, strict=True) for step in range(begin, end)}


@pytest.mark.parametrize("seed", range(30))
def test_unions_cover_what_sets_of_steps_cover(seed: int) -> None:
    draw = np.random.default_rng(seed)
    begins = draw.integers(0, 60, draw.integers(0, 12))
    ends = begins + draw.integers(0, 9, len(begins))
    others = draw.integers(0, 60, 8)
    other_ends = others + draw.integers(0, 20, 8)
    union, steps = IntervalSet(begins, ends), _steps(begins, ends)
    assert union.seconds == len(steps)
    assert all(union.ends[:-1] < union.begins[1:])
    expected = [len(steps & set(range(begin, end))) for begin, end in zip(others, other_ends, strict=True)]
    assert union.covered(others, other_ends).tolist() == expected
    assert union.overlap(IntervalSet(others, other_ends)) == len(steps & _steps(others, other_ends))


def test_intervals_that_are_none() -> None:
    union = IntervalSet([1.0, np.nan, 3.0, 5.0], [1.0, 2.0, np.nan, 4.0])
    assert (union.seconds, union.covered([0.0], [9.0]).tolist()) == (0.0, [0.0])
    assert IntervalSet([], []).covered(np.zeros(3), np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_one_interval_inside_of_another() -> None:
    union = IntervalSet([0.0, 1.0, 2.0], [10.0, 3.0, 4.0])
    assert (union.begins.tolist(), union.ends.tolist()) == ([0.0], [10.0])
