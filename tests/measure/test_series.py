"""Samples until the median is known well enough."""

import random
from dataclasses import replace

import pytest

from hocket.errors import CommTimeout, InvalidArgument
from hocket.measure import Key, Series, StopRule, measure_series

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
RULE = StopRule(precision=0.05, min_sample_s=1e-3, time_limit_s=1e9)


class Ranks:
    """Two ranks of contenders whose times are drawn; `late` is the share of calls that a rank begins too late."""

    num_ranks, num_cpus, pids = 2, 2, ()

    def __init__(self, spreads, late=lambda period_s: 0.0):
        self.spreads, self.late = spreads, late
        self.random = random.Random(1)
        self.turns = []

    @property
    def contenders(self):
        return tuple(Key(case, name) for case, name in self.spreads)

    def _time(self, key):
        return 1e-4 * (1 + self.spreads[key] * self.random.random())

    def run(self, contender, iterations):
        self.turns.append(contender)
        return [self._time(contender) * iterations, 0.0]

    def run_windows(self, contender, count, period_s):
        self.turns.append(contender)
        late = [self.random.random() < self.late(period_s) for _ in range(count)]
        return [[float("nan") if each else self._time(contender) for each in late], [1e-5] * count]

    def compute(self, ranks):
        return [1.0] * len(ranks)

    def agree(self, value):
        return value


def test_what_is_steady_needs_fewer_samples_than_what_is_not():
    found = measure_series(Ranks({("a", "steady"): 0.01, ("b", "unsteady"): 1.0}), RULE).series
    steady, unsteady = found[Key("a", "steady")], found[Key("b", "unsteady")]
    assert len(steady.samples) == RULE.min_samples < len(unsteady.samples)
    low, high = unsteady.interval
    assert (high - low) / 2 <= RULE.precision * unsteady.median or len(unsteady.samples) == RULE.max_samples


@pytest.mark.parametrize("together", [False, True])
def test_contenders_that_belong_together_have_as_many_samples(together):
    ranks = Ranks({("a", "steady"): 0.01, ("a", "unsteady"): 1.0, ("b", "steady"): 0.01})
    found = measure_series(ranks, replace(RULE, together=together)).series
    lengths = {tuple(key): len(each.samples) for key, each in found.items()}
    assert lengths["a", "steady"] == lengths["a", "unsteady"]
    assert (lengths["b", "steady"] == lengths["a", "steady"]) == together


def test_contenders_of_a_case_take_turns_in_random_order():
    ranks = Ranks({("a", name): 1.0 for name in "xyz"})
    measure_series(ranks, replace(RULE, precision=0.001, max_samples=30))
    turns = [key.name for key in ranks.turns][-90:]
    rounds = ["".join(turns[place : place + 3]) for place in range(0, 90, 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"xyz"} and len(set(rounds)) > 3


def test_the_time_of_a_call_is_that_of_the_last_rank():
    key = Key("a", "x")
    found = measure_series(Ranks({key: 0.0}), RULE, {key}).series[key]
    assert found.median == pytest.approx(1e-4)
    assert set(found.calls) == {(1e-4, 1e-5)} and found.num_late == 0


def test_windows_become_longer_where_ranks_are_late():
    key = Key("a", "x")
    found = measure_series(Ranks({key: 0.0}, late=lambda period_s: 0.9 if period_s < 1e-3 else 0.0), RULE, {key})
    series = found.series[key]
    assert series.num_late > 0 and len(series.samples) == RULE.min_samples
    assert series.median == pytest.approx(1e-4)


def test_a_rank_that_is_always_late_is_an_error():
    key = Key("a", "x")
    with raises(CommTimeout, names=("x", "a")):
        measure_series(Ranks({key: 0.0}, late=lambda period_s: 1.1), RULE, {key})


def test_the_time_limit_ends_it_after_a_round():
    found = measure_series(Ranks({("a", "x"): 1.0}), replace(RULE, precision=1e-6, time_limit_s=0.0))
    assert [len(each.samples) for each in found.series.values()] == [1]
    assert next(iter(found.series.values())).interval is None


@pytest.mark.parametrize(
    ("options", "names"),
    [({"precision": 0.0}, ("precision", "0.0")), ({"min_samples": 5}, ("6", "5")), ({"max_samples": 8}, ("8", "9"))],
)
def test_rules_that_cannot_be(options, names):
    with raises(InvalidArgument, names=names):
        StopRule(**options)


def test_the_time_left_shrinks_with_what_is_still_to_be_known():
    told = []
    ranks = Ranks({("quiet", "a"): 0.01, ("noisy", "b"): 1.0})
    measure_series(ranks, replace(RULE, max_samples=200), on_round=lambda *state: told.append(state))
    set_up, rounds = told[:2], told[2:]
    assert "quiet, a" in set_up[0][2] and "noisy, b" in set_up[1][2]
    assert all(state[3] >= 0 for state in rounds) and rounds[-1][3] == 0 and rounds[0][3] > 0
    assert "noisy, b" in rounds[-1][2]  # of which least is known
    assert rounds[-1][0] == 2


@pytest.mark.parametrize(("num_samples", "spread", "num_left"), [(3, 1.0, 6), (9, 0.0, 0), (9, 1.0, 41), (50, 1.0, 0)])
def test_how_many_samples_are_still_needed(num_samples, spread, num_left):
    rule = StopRule(precision=0.05, min_samples=9, max_samples=50)
    samples = [1.0 + spread * (number % 3) for number in range(num_samples)]
    assert Series(1, samples).num_left(rule) == num_left


def test_what_is_measured_beside_another_has_its_samples_and_keeps_nobody_waiting():
    ranks = Ranks({("a", "steady"): 0.01, ("a", "share"): 5.0})
    share, steady = Key("a", "share"), Key("a", "steady")
    found = measure_series(ranks, RULE, beside={share: steady}).series
    assert len(found[share].samples) == len(found[steady].samples) == RULE.min_samples
    assert found[share].iterations == found[steady].iterations
