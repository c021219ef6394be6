"""The verdict of a comparison, on seeded noise: equals are equals, and 5 % are 5 %."""

import random
from dataclasses import replace

import pytest

from hocket.bench.comparison import compare, launches_needed
from hocket.errors import InvalidArgument

from ..naming import raises
from .results import noisy, result

pytestmark = pytest.mark.timeout(60)
SIZES = [8 << (3 * power) for power in range(6)]


def both(slowdown: float, seed: int, count: int = 40):
    """Six sizes by two libraries, the second of which takes so much longer; rounds have disturbances in common."""
    draw = random.Random(seed)
    first, second = [], []
    for place, nbytes in enumerate(SIZES):
        common = [1 + draw.random() for _ in range(count)]
        seconds = 1e-6 * (1 + nbytes / 1e4)
        first.append(result(nbytes=nbytes, samples=noisy(seconds, count, 100 * seed + 2 * place, common)))
        slower = seconds * (1 + slowdown)
        second.append(
            result(nbytes=nbytes, samples=noisy(slower, count, 100 * seed + 2 * place + 1, common), target="gloo")
        )
    return first, second


def test_equals_raise_at_most_one_false_alarm_in_twenty():
    alarms = sum(compare(*both(0.0, seed), least=0.0, paired=True).is_slower for seed in range(200))
    assert alarms <= 10


@pytest.mark.parametrize("seed", range(20))
def test_five_percent_are_seen_at_every_size(seed):
    found = compare(*both(0.05, seed), paired=True)
    assert [row.verdict for row in found.rows] == ["slower"] * len(SIZES)
    assert [row.ratio for row in found.rows] == pytest.approx([1.05] * len(SIZES), abs=0.015)
    assert found.is_slower


def test_the_faster_one_is_no_regression():
    found = compare(*reversed(both(0.5, 1)), paired=True)
    assert {row.verdict for row in found.rows} == {"faster"} and not found.is_slower


def test_launches_that_differ_are_no_difference_between_libraries():
    """Each launch of a job is a few percent faster or slower than another one, however many rounds it has."""
    alarms = 0
    for seed in range(100):
        draw = random.Random(seed)
        first, second = [], []
        for found in (first, second):
            samples = [
                sample for _ in range(9) for sample in noisy(1e-5 * draw.gauss(1, 0.03), 40, draw.getrandbits(30))
            ]
            found.append(result(samples=samples, launches=[40] * 9))
        rows = compare(first, second, least=0.0, paired=True).rows
        assert rows[0].num_launches == 9
        alarms += rows[0].verdict == "slower"
        of_one = [replace(each, launches=()) for each in (*first, *second)]
        assert compare(of_one[:1], of_one[1:], paired=True).rows[0].num_launches == 1
    assert alarms <= 5


def test_less_than_the_least_difference_is_none():
    assert not compare(*both(0.05, 3), least=0.1, paired=True).is_slower


def test_unpaired_samples_need_a_larger_difference_and_launches():
    first, second = both(0.05, 5)
    assert {row.verdict for row in compare(first, second, paired=False).rows} == {"too few launches"}
    assert not compare(first, second, paired=False).is_judged
    count = launches_needed(len(SIZES), paired=False)
    first, second = ([replace(each, launches=(len(each.samples) // count,) * count) for each in both(
        slowdown, 5, 40 * count)[place]] for place, slowdown in enumerate((0.0, 0.3)))  # fmt: skip
    found = compare(first, second, paired=False)
    assert found.is_judged and {row.verdict for row in found.rows} == {"slower"}
    paired = compare(first, second, paired=True).rows
    assert all(wide.interval[1] / wide.interval[0] > row.interval[1] / row.interval[0] for wide, row in zip(
        found.rows, paired, strict=True))  # fmt: skip


@pytest.mark.parametrize("num_rows", [1, 2, 12, 13, 19, 100])
def test_as_many_launches_as_are_needed_judge_every_row(num_rows):
    for paired in (True, False):
        count = launches_needed(num_rows, paired=paired)
        sides = []
        for seconds in (1e-6, 2e-6):
            samples = noisy(seconds, 8 * count, 3)
            sides.append(
                [result(nbytes=8 * (row + 1), samples=samples, launches=[8] * count) for row in range(num_rows)]
            )
        assert {row.verdict for row in compare(*sides, paired=paired).rows} == {"slower"}


def test_files_with_several_libraries_are_compared_library_by_library():
    both_libraries = [result(samples=[1e-6] * 9), result(samples=[5e-5] * 9, target="gloo")]
    rows = compare(both_libraries, both_libraries[::-1], paired=True).rows
    assert [row.ratio for row in rows] == [1.0, 1.0]
    assert "gloo" in rows[0].case and "shm" in rows[1].case


def test_few_samples_are_called_few():
    first, second = both(1.0, 7, count=5)
    assert {row.verdict for row in compare(first, second, paired=True).rows} == {"too few samples"}


def test_nothing_in_common():
    with raises(InvalidArgument):
        compare([result(nbytes=8)], [result(nbytes=16)], paired=False)
