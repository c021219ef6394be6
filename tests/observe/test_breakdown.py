"""Totals of runs: against the numbers that a program must have, and against the durations behind histograms."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hocket.observe import breakdown, open_run, operations_of, record_run, totals_of
from hocket.trace.region import FIRST_TIME_BIN

from .fabricated_run import KINDS, FakeRank, fabricate, with_histograms

pytestmark = pytest.mark.timeout(120)
_PROGRAM = """
import numpy as np
import hocket as hk
with hk.init() as comm:
    for count in (100, 120, 5000):
        for _ in range(count // 50):
            comm.all_reduce(np.ones(count, np.float32))
    comm.all_gather(np.zeros((comm.size, 32)), np.ones(32))
    half = comm.split(comm.rank % 2)
    half.broadcast(np.ones(4), 0)
    comm.send(np.ones(3), 1) if comm.rank == 0 else comm.rank == 1 and comm.recv(np.ones(3), 0)
"""


def test_a_program_with_known_operations(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    record_run([sys.executable, "-m", "hocket.cli", "run", "-n", "4", str(script)], tmp_path / "run")
    run = open_run(tmp_path / "run")
    totals = totals_of(run)
    of_program = [each for each in breakdown(totals) if each.op not in ("barrier",)]
    found = {(each.op, each.least_nbytes, each.num_ranks): each for each in of_program}
    # 400 and 480 bytes are of one class, 20,000 bytes of another.
    small, large = found["all_reduce", 256, 4], found["all_reduce", 16384, 4]
    assert (small.count, small.nbytes, small.most_nbytes) == (4 * 4, 4 * (2 * 400 + 2 * 480), 511)
    assert (large.count, large.nbytes, large.library, large.failed) == (4 * 100, 4 * 100 * 20_000, "shm", 0)
    assert not large.is_foreign
    assert (found["broadcast", 32, 2].count, found["broadcast", 32, 2].nbytes) == (4, 4 * 32)
    assert (found["send", 16, 4].count, found["recv", 16, 4].nbytes) == (1, 24)
    # The whole array of an all_gather has the blocks of all ranks.
    gathered = found["all_gather", 256, 4]
    assert gathered.bus_bandwidth == pytest.approx(4 * 256 * 4 * 0.75 / gathered.seconds)
    assert large.bus_bandwidth == pytest.approx(large.nbytes * 1.5 / large.seconds)
    # All of these operations were recorded one by one, too.
    rows = operations_of(run).rows
    own = rows[(rows["kind"] == KINDS["all_reduce"]) & (rows["nbytes"] == 20_000)]
    seconds = own["end"] - own["begin"]
    assert large.seconds == pytest.approx(float(seconds.sum()), rel=1e-3)
    for quantile, value in ((0.5, large.median_s), (0.99, large.p99_s)):
        exact = float(np.quantile(seconds, quantile, method="inverted_cdf"))
        assert 0.5 < value / exact < 2, quantile


@pytest.mark.parametrize("seed", range(10))
def test_quantiles_are_those_of_the_durations_behind_the_bins(seed: int) -> None:
    draw = np.random.default_rng(seed)
    ticks = np.exp(draw.normal(12, 2, 500)).astype(np.int64) + 1  # nanoseconds
    bins = np.clip(np.floor(np.log2(ticks)).astype(int) - FIRST_TIME_BIN, 0, 39)
    entry = {
        "comm": 1, "peer": -1, "kind": KINDS["all_reduce"], "size_class": 4, "is_used": 1, "count": len(ticks),
        "nbytes": 8 * len(ticks), "ticks": ticks.sum(), "least_ticks": ticks.min(), "most_ticks": ticks.max(),
        "bins": np.bincount(bins, minlength=40),
    }  # fmt: skip
    run = fabricate([FakeRank(rank) for rank in range(2)])
    run = replace(run, processes=tuple(with_histograms(each, [entry], 1) for each in run.processes))
    (row,) = breakdown(totals_of(run))
    assert (row.count, row.nbytes, row.least_nbytes, row.most_nbytes) == (2 * len(ticks), 16 * len(ticks), 8, 15)
    assert row.seconds == pytest.approx(2 * ticks.sum() * 1e-9)
    for quantile, value in ((0.5, row.median_s), (0.99, row.p99_s)):
        exact = float(np.sort(ticks)[int(np.ceil(quantile * len(ticks))) - 1]) * 1e-9
        assert 2**-0.51 <= value / exact <= 2**0.51, (quantile, value, exact)


def test_other_libraries_report_what_a_rank_contributes() -> None:
    entry = {
        "comm": 1, "peer": -1, "kind": KINDS["all_gather"], "size_class": 10, "is_used": 1, "count": 3, "nbytes": 3000,
        "ticks": 3_000_000, "least_ticks": 1_000_000, "most_ticks": 1_000_000, "bins": np.eye(40, dtype=int)[15] * 3,
    }  # fmt: skip
    run = fabricate([FakeRank(rank) for rank in range(4)])
    bandwidths = {}
    for num_own in (1, 0):
        fake = replace(run, processes=tuple(with_histograms(each, [entry], num_own) for each in run.processes))
        (row,) = breakdown(totals_of(fake))
        assert row.is_foreign is (num_own == 0)
        bandwidths[num_own] = row.bus_bandwidth
    # Both are one block of four here.
    assert bandwidths[0] == bandwidths[1] == pytest.approx(4 * 3000 * 4 * 0.75 / (4 * 0.003))
