import json
from dataclasses import replace

import numpy as np
import pytest

from hocket.bench.result import Result, clearly_fastest
from hocket.errors import InvalidArgument

from ..naming import raises
from .results import noisy, result

pytestmark = pytest.mark.timeout(60)


def test_percentiles_are_numpys_nearest_ranks():
    calls = [(each, each / 2) for each in noisy(1e-6, 997, 1)]
    found = result(calls=calls)
    for percent in (0, 1, 50, 95, 99, 99.9, 100):
        wanted = np.percentile([max(each) for each in calls], percent, method="inverted_cdf")
        assert found.percentile(percent) == pytest.approx(1e6 * wanted)
    with raises(InvalidArgument, names=("0", "100", "101")):
        found.percentile(101)


@pytest.mark.parametrize(
    ("benchmark", "algbw", "busbw"),
    # nccl-tests, doc/PERFORMANCE.md, with 4 ranks and 1 MiB in 1 ms; an all_gather's size is that of all ranks' parts
    [("all_reduce", 1.048576, 1.5), ("reduce_scatter", 1.048576, 0.75), ("all_gather", 4 * 1.048576, 0.75),
     ("all_to_all", 4 * 1.048576, 0.75), ("gather", 4 * 1.048576, 0.75), ("persistent_all_reduce", 1.048576, 1.5),
     ("iall_gather", 4 * 1.048576, 0.75), ("all_gatherv", 4 * 1.048576, 0.75),
     ("broadcast", 1.048576, 1.0), ("reduce", 1.048576, 1.0)],
)  # fmt: skip
def test_bandwidths_are_those_of_nccl_tests(benchmark, algbw, busbw):
    found = result(benchmark, 1 << 20, [1e-3] * 9, num_ranks=4)
    assert found.algbw == pytest.approx(algbw)
    assert found.busbw == pytest.approx(algbw * busbw)


def test_a_latency_is_half_of_there_and_back_and_a_bandwidth_counts_its_window():
    assert result("latency", 8, [3e-6] * 9).value == pytest.approx(1.5)
    assert result("bandwidth", 1 << 20, [64e-3] * 9).value == pytest.approx(1048.576)
    # of all pairs together, as OMB's osu_mbw_mr adds them up
    assert result("multi_bandwidth", 1 << 20, [64e-3] * 9, num_ranks=6).value == pytest.approx(3 * 1048.576)


@pytest.mark.parametrize(
    ("both", "hidden"),
    [(1.2, 80.0), (2.0, 0.0), (2.5, 0.0), (1.0, 100.0), (0.5, 100.0)],  # the last two, for the noise in them
)
def test_between_nothing_and_all_of_an_operation_is_hidden(both, hidden):
    found = replace(result(samples=[both] * 3), parts={"product": (1.0,) * 3, "alone": (1.0,) * 3})
    assert found.overlap == pytest.approx(hidden)


def test_only_what_is_fastest_beyond_doubt_is_called_the_fastest():
    def row(*medians, spread=0.01):
        around = [1 - spread, 1 + spread] * 5
        return [result(samples=[each * factor for factor in around], target=str(each)) for each in medians]

    fast, slow = row(1e-5, 2e-5)
    assert clearly_fastest([slow, fast]) is fast
    assert clearly_fastest(row(1e-5, 1.01e-5)) is None and clearly_fastest(row(1e-5, 1.5e-5, spread=0.3)) is None
    assert clearly_fastest([fast]) is None and clearly_fastest([]) is None
    assert clearly_fastest([fast, result(samples=[2e-5] * 5)]) is None  # too few for an interval
    bandwidths = [result("bandwidth", 1 << 20, [each] * 9) for each in (1e-3, 2e-3)]
    assert clearly_fastest(bandwidths) is bandwidths[0]


def test_results_come_back_from_json():
    found = result(calls=[(1e-6, 2e-6)] * 3)
    assert Result.from_json(json.loads(json.dumps(found.to_json(raw=True)))) == found
    with raises(InvalidArgument, names="KeyError"):
        Result.from_json({"benchmark": "all_reduce"})
    whole = found.to_json(raw=True)
    for damage in (
        {"samples_s": []},
        {"samples_s": ["x"]},
        {"parts_s": []},
        {"launches": [4, 4]},
        {"benchmark": "none"},
    ):
        with pytest.raises(InvalidArgument):
            Result.from_json({**whole, **damage})
