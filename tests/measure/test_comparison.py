import json

import pytest

from hocket.errors import InvalidArgument
from hocket.measure import Comparison, Key, Measurement, Round, computed, judge, judge_values, null_rows, report
from hocket.measure.comparison import meets
from hocket.measure.rounds import AGAIN
from hocket.measure.statistics import Ratio

from ..naming import raises

pytestmark = pytest.mark.timeout(30)


def measured(speed_ups, factors=None, foreign=0.0):
    """Rounds in which "ours" takes 1 us, "slow" 10 us and "fast" as many us as given."""
    factors = factors or [2.0] * len(speed_ups)
    times = [{"ours": 1e-6, "ours" + AGAIN: 1.01e-6, "fast": s * 1e-6, "slow": 1e-5} for s in speed_ups]
    rounds = tuple(
        Round({Key("16 B", name): t for name, t in seconds.items()}, factor)
        for seconds, factor in zip(times, factors, strict=True)
    )
    names = ("ours", "fast", "slow")
    return Measurement(rounds, {Key("16 B", name): 1 for name in names}, 2, foreign, 1.7)


def row(measurement, target, **more):
    return judge(measurement, Comparison("16 B", "ours", ("slow", "fast"), target, **more))


def finished(measurement, *rows):
    return report("a claim", rows, [measurement])


@pytest.mark.parametrize(
    ("median", "low", "holds"),
    [(2.0, 1.8, True), (2.0, 1.79, False), (1.99, 1.98, False), (5.0, 1.0, False), (5.0, 4.0, True)],
)
def test_median_and_lower_end_decide(median, low, holds):
    assert meets(Ratio(median, low, 9.0, 15), 2.0) is holds


def test_a_row_names_the_fastest_rival():
    seen = row(measured([2.0] * 9), 1.7)
    assert (seen.rival, seen.ours, seen.theirs, seen.unit, seen.ratio, seen.interval, seen.holds) == (
        "fast", pytest.approx(1.0), pytest.approx(2.0), "us", pytest.approx(2.0), pytest.approx((2.0, 2.0)), True,
    )  # fmt: skip


def test_exit_codes():
    good = measured([2.0] * 9)
    assert finished(good, row(good, 1.7)).exit_code == 0
    assert finished(good, row(good, 1.7), row(good, 2.5)).exit_code == 1
    assert finished(good, row(good, None)).exit_code == 0


def test_rounds_without_full_cores_do_not_count():
    mixed = measured([1.0] * 10 + [2.0] * 9, [1.2] * 10 + [1.9] * 9)
    assert row(mixed, 1.7).holds is True
    assert row(mixed, 1.7, needs_cores=False).holds is False


def test_too_few_full_rounds_are_not_judged_and_exit_3():
    few = measured([2.0] * 20, [1.2] * 12 + [1.9] * 8)
    seen = row(few, 1.7)
    assert seen.holds is None and seen.ratio == pytest.approx(2.0)
    result = finished(few, seen)
    assert (result.exit_code, result.judged) == (3, False)
    assert finished(few, seen, row(few, 2.5, needs_cores=False)).exit_code == 1  # what falls short stays so


def test_foreign_work_is_not_judged_even_where_the_target_is_reached():
    busy = measured([2.0] * 9, foreign=0.3)
    result = finished(busy, row(busy, 1.7))
    assert (result.exit_code, result.foreign_busy) == (3, 0.3)


def test_five_rounds_have_no_interval():
    seen = row(measured([2.0] * 5), 1.7)
    assert (seen.interval, seen.holds) == (None, None)


def test_values_by_round_are_judged_as_comparisons_are():
    ours, theirs = [1e-6] * 9, [2e-6] * 9
    seen = judge_values("sum", "apart", ours, theirs, target=1.7)
    assert (seen.ours, seen.theirs, seen.ratio) == pytest.approx((1.0, 2.0, 2.0)) and seen.holds is True
    assert judge_values("sum", "apart", ours, theirs, values=[0.5] * 9, target=0.6).holds is False
    assert judge_values("sum", "apart", ours, theirs, target=1.7, can_be_judged=False).holds is None
    few = judge_values("sum", "apart", ours[:5], theirs[:5], target=1.7)
    assert few.interval is None and few.holds is None


def test_two_numbers_have_no_interval():
    assert computed("step", "least", 2.0, 3.0, "ms").holds is None
    assert computed("step", "least", 2.0, 3.0, "ms", 1.5).holds is True
    short = computed("step", "least", 2.0, 3.0, "ms", 1.6)
    assert (short.holds, short.interval, short.ratio) == (False, None, 1.5)


def test_what_ran_once_a_round_has_no_null_row():
    once = measured([2.0] * 9)
    for each in once.rounds:
        del each.seconds[Key("16 B", "ours" + AGAIN)]
    assert null_rows(once) == ()


def test_a_measurement_knows_its_contenders_and_their_times():
    seen = measured([2.0, 3.0])
    assert (seen.cases, seen.names("16 B")) == (["16 B"], ["ours", "fast", "slow"])
    assert seen.times("16 B", "fast") == [2e-6, 3e-6]


def test_null_rows_show_the_first_contender_against_itself():
    (null,) = null_rows(measured([2.0] * 9))
    assert (null.case, null.rival, null.target, null.holds) == ("16 B, 2 ranks, A/A", "ours" + AGAIN, None, None)
    assert null.ratio == pytest.approx(1.01)


def test_unknown_contenders_and_units_are_errors():
    good = measured([2.0] * 9)
    with raises(InvalidArgument, names=("'nobody'", "'16 B'")):
        judge(good, Comparison("16 B", "ours", ("nobody",)))
    with raises(InvalidArgument, names=("rivals=()", "'16 B'")):
        judge(good, Comparison("16 B", "ours", ()))
    with raises(InvalidArgument, names=("'weeks'", "s", "ms", "us", "ns")):
        judge(good, Comparison("16 B", "ours", ("fast",), unit="weeks"))


def test_the_json_line_has_exactly_the_agreed_fields():
    good = measured([2.0] * 9)
    line = finished(good, row(good, 1.7), *null_rows(good)).to_json()
    assert "\n" not in line
    read = json.loads(line)
    assert list(read) == ["claim", "rows", "core_factor", "foreign_busy", "judged"]
    for fields in read["rows"]:
        assert list(fields) == ["case", "rival", "ours", "theirs", "unit", "ratio", "interval", "target", "holds"]
    assert read["rows"][0] == {
        "case": "16 B", "rival": "fast", "ours": 1.0, "theirs": 2.0, "unit": "us",
        "ratio": 2.0, "interval": [2.0, 2.0], "target": 1.7, "holds": True,
    }  # fmt: skip


def test_the_table_shows_every_row():
    good = measured([2.0] * 9)
    table = finished(good, row(good, 2.5), *null_rows(good)).to_table()
    assert "2 .. 2" in table and "NO" in table and "16 B, 2 ranks, A/A" in table and "a row falls short" in table
