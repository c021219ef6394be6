import time
from dataclasses import replace
from itertools import count

import pytest

from hocket.errors import InvalidArgument
from hocket.measure import Contender, Key, Settings, Team, calibrate, measure, ratios
from hocket.measure.rounds import AGAIN, full_cores

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
QUICK = Settings(min_rounds=15, min_sample_s=1.0, core_rounds=0)
OURS, THEIRS, AGAIN_OURS = Key("case", "ours"), Key("case", "theirs"), Key("case", "ours" + AGAIN)


def two(theirs_s, noise=0.0):
    return lambda fake: [fake.contender("ours", 1e-3, noise), fake.contender("theirs", theirs_s, noise)]


@pytest.mark.parametrize("delay", [0.5, 0.97, 1.03, 1.5, 40.0])
def test_an_injected_delay_is_the_ratio(run_ranks, delay):
    seen = ratios(run_ranks(2, two(delay * 1e-3), QUICK)[0], OURS, THEIRS)
    assert (seen.median, seen.low, seen.high) == pytest.approx((delay, delay, delay))


def test_a_delay_is_seen_through_noise_and_the_null_test_shows_the_noise(run_ranks):
    measured = run_ranks(2, two(1.5e-3, noise=0.1), replace(QUICK, min_rounds=41))[0]
    delayed, null = ratios(measured, OURS, THEIRS), ratios(measured, OURS, AGAIN_OURS)
    assert 1.4 < delayed.low < 1.5 < delayed.high < 1.6
    assert 0.95 < null.low < 1.0 < null.high < 1.05
    assert null.low < null.median < null.high


def test_nothing_runs_again_if_not_wanted(run_ranks):
    measured = run_ranks(2, two(1.5e-3), replace(QUICK, again=False))[0]
    assert all(set(each.seconds) == {OURS, THEIRS} for each in measured.rounds)


def test_a_delay_of_one_rank_delays_all(run_ranks):
    def contenders(fake):
        slow = 1.5 if fake.rank == 2 else 1.0
        return [fake.contender("ours", 1e-3), fake.contender("theirs", slow * 1e-3)]

    for measured in run_ranks(3, contenders, QUICK):
        assert ratios(measured, OURS, THEIRS).median == pytest.approx(1.5)


def test_all_ranks_measure_the_same_in_the_same_order(run_ranks):
    orders = {}

    def contenders(fake):
        orders[fake.rank] = order = []

        def logged(contender):
            return Contender(
                contender.case, contender.name, lambda n: (order.append((*contender.key, n)), contender.run(n))
            )

        return [
            logged(fake.contender(name, seconds * (1 + fake.rank), 0.3, case))
            for case in ("small", "large")
            for name, seconds in (("a", 1e-5), ("b", 3e-4), ("c", 0.2))
        ]

    first, second = run_ranks(2, contenders, QUICK)
    assert orders[0] == orders[1]
    assert [dict(round_.seconds) for round_ in first.rounds] == [dict(round_.seconds) for round_ in second.rounds]
    assert first.iterations == second.iterations


def test_order_within_rounds_is_random_and_keeps_a_case_together(run_ranks):
    rounds = run_ranks(
        1,
        lambda fake: [fake.contender(name, 1e-3, case=case) for case in "xy" for name in "ab"],
        replace(QUICK, min_rounds=40),
    )[0].rounds
    orders = [tuple(round_.seconds) for round_ in rounds]
    assert len(set(orders)) > 20
    for order in orders:
        cases = [case for case, _name in order]
        assert cases in (["x"] * 3 + ["y"] * 3, ["y"] * 3 + ["x"] * 3)


def test_a_sample_lasts_long_enough_on_the_slowest_rank(run_ranks):
    measured = run_ranks(2, lambda fake: [fake.contender("ours", 1e-6 * (1 + fake.rank))], QUICK)[0]
    assert 1.0 <= measured.iterations[OURS] * 2e-6 < 1.5


def test_a_long_contender_runs_once_a_sample():
    now = count()
    team = Team([Contender("case", "ours", lambda _n: next(now))], clock=lambda: float(next(now)))
    assert calibrate(team, OURS, 0.5) == 1


def test_a_contender_without_time_is_an_error():
    team = Team([Contender("case", "ours", lambda _n: None)], clock=lambda: 0.0)
    with raises(InvalidArgument, names=("ours", "case")):
        calibrate(team, OURS, 0.01)


def test_set_up_is_outside_time_and_plain_callables_are_counted():
    calls = []
    Contender.of_call("case", "ours", lambda: calls.append(1)).run(7)
    assert len(calls) == 7


def test_double_and_missing_contenders_are_errors():
    contender = Contender("case", "ours", lambda _n: None)
    with raises(InvalidArgument):
        Team([contender, contender])
    with raises(InvalidArgument):
        measure(Team([]))


def test_core_factor_of_two_full_cores_and_of_a_shared_one(run_ranks):
    full = run_ranks(2, two(1e-3), QUICK)[0]
    assert full.core_factor == pytest.approx(2.0)

    def shared(_rank, call):  # each rank computes twice a round: alone, then with the other
        return 1.0 if call % 2 == 0 else 2.0

    assert run_ranks(2, two(1e-3), QUICK, shared)[0].core_factor == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("num_ranks", "num_cpus", "threshold"), [(1, 2, 0.0), (2, 2, 1.7), (8, 2, 1.7), (4, 64, 3.4), (2, 1, 0.85)]
)
def test_full_cores_of_ranks_and_cpus(num_ranks, num_cpus, threshold):
    assert full_cores(num_ranks, num_cpus) == pytest.approx(threshold)


def test_others_work_while_a_rank_is_alone_gives_no_cores(run_ranks):
    def disturbed_alone(_rank, call):  # from the second round on
        return 5.0 if call % 2 == 0 and call > 1 else 1.0

    assert run_ranks(2, two(1e-3), QUICK, disturbed_alone)[0].core_factor == pytest.approx(2.0)


def test_rounds_go_on_until_enough_had_full_cores(run_ranks):
    def every_fourth_full(_rank, call):
        return 1.0 if call % 2 == 0 or (call // 2) % 4 == 0 else 1.9

    settings = replace(QUICK, core_rounds=9, full_core_factor=1.7)
    measured = run_ranks(2, two(1e-3), settings, every_fourth_full)[0]
    assert (len(measured.rounds), len(measured.full_core_rounds)) == (36, 9)


def test_the_time_limit_ends_a_measurement_without_full_cores(run_ranks):
    settings = replace(QUICK, core_rounds=9, full_core_factor=1.7, time_limit_s=0.0)
    measured = run_ranks(2, two(1e-3), settings, lambda _rank, call: 1.0 + call % 2)[0]
    assert len(measured.full_core_rounds) == 0 < len(measured.rounds)


def test_progress_is_told_after_each_round():
    now = count()
    told = []
    team = Team([Contender("case", "ours", lambda _n: next(now))], clock=lambda: float(next(now)))
    measure(team, replace(QUICK, min_rounds=3, time_limit_s=1e9), on_round=lambda *state: told.append(state))
    assert [state[:2] for state in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert "ours" in told[0][2]  # is set up
    *left, last = [state[3] for state in told[1:]]
    assert left[0] > left[1] > 0 and last == 0


def test_the_time_left_is_bounded_by_the_limit():
    told = []
    settings = replace(QUICK, min_rounds=1000, time_limit_s=0.05)
    measure(
        Team([Contender("case", "ours", lambda n: time.sleep(1e-4 * n))]),
        settings,
        on_round=lambda *state: told.append(state),
    )
    assert all(state[3] <= 0.05 for state in told[1:]) and told[-1][0] < 1000
