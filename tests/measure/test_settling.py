"""A sample starts when the ranks are apart."""

from __future__ import annotations

import itertools

import pytest

from hocket.measure.settling import SettlingBarrier

pytestmark = pytest.mark.timeout(60)


def _bursts(seconds: list[float]) -> list[int]:
    """How many bursts each of two barriers takes, if bursts last so long on this rank and half of that on another."""
    now, left, taken = 0.0, list(seconds), []

    def gather(values: list[float]) -> list[list[float]]:
        return [[values[0] / 2], values]

    def clock() -> float:
        nonlocal now
        if next(counter) % 2:
            now += left.pop(0)
        return now

    counter = itertools.count()
    settle = SettlingBarrier(lambda: None, gather, clock)
    for _ in range(2):
        before = len(left)
        settle()
        taken.append(before - len(left))
    return taken


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ([1e-5, 1e-5], [1, 1]),
        ([1e-5, 9e-4, 9e-4, 1.5e-5], [1, 3]),  # apart again
        ([1e-5, 5e-3, 5e-3, 5e-3], [1, 2]),  # never: it gives up after 10 ms
    ],
)
def test_a_sample_starts_when_the_ranks_are_apart(seconds: list[float], taken: list[int]) -> None:
    assert _bursts(seconds) == taken
