import math
import random
from statistics import median

import pytest

from hocket.errors import InvalidArgument
from hocket.measure import median_interval, ratio
from hocket.measure.statistics import interval_rank

from ..naming import raises


def coverage(count: int, rank: int) -> float:
    """P(the rank-th smallest <= median <= the rank-th largest), from the binomial distribution itself."""
    return sum(math.comb(count, below) for below in range(rank, count - rank + 1)) / 2**count


@pytest.mark.timeout(30)
@pytest.mark.parametrize("count", range(6, 200))
def test_interval_is_the_narrowest_with_95_percent(count):
    rank = interval_rank(count)
    assert coverage(count, rank) >= 0.95 > coverage(count, rank + 1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("count", range(6))
def test_too_few_values_are_an_error(count):
    with raises(InvalidArgument, names=str(count)):
        median_interval([1.0] * count)


@pytest.mark.timeout(30)
def test_known_ranks():  # tabulated, e.g. Hahn and Meeker, Statistical Intervals (1991), table A.15
    assert [interval_rank(count) for count in (6, 9, 15, 20, 25)] == [1, 2, 4, 6, 8]


@pytest.mark.timeout(30)
def test_interval_holds_the_median_as_often_as_it_says():
    order = random.Random(5)
    trials = 4000
    hits = 0
    for _ in range(trials):
        low, high = median_interval([order.expovariate(1.0) for _ in range(15)])
        hits += low <= math.log(2) <= high
    assert hits / trials == pytest.approx(coverage(15, 4), abs=0.01)


@pytest.mark.timeout(30)
def test_ratio_is_taken_round_by_round():
    machine_gets_slower = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    seen = ratio(machine_gets_slower, [1.5 * t for t in machine_gets_slower])
    assert (seen.median, seen.low, seen.high, seen.rounds) == (1.5, 1.5, 1.5, 7)


@pytest.mark.timeout(30)
def test_one_wild_round_moves_nothing():
    ours = [1.0] * 15
    theirs = [2.0] * 14 + [500.0]
    seen = ratio(ours, theirs)
    assert (seen.median, seen.low, seen.high) == (2.0, 2.0, 2.0)
    assert median(theirs) == 2.0


@pytest.mark.timeout(30)
def test_rounds_must_pair():
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0] * 9, [1.0] * 8)
