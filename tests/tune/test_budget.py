"""A sweep that keeps to its time: what is large is left out, and said."""

from __future__ import annotations

import warnings

import pytest

import hocket as hk
from hocket.comm.policy import Group
from hocket.tune import Table
from hocket.tune.budget import SET_UP_ROUNDS, Budget
from hocket.tune.contest import Contest
from hocket.tune.fit import Fit
from hocket.tune.sweep import Sweep, measure_table

from ..load import scaled
from ..naming import assert_names

pytestmark = pytest.mark.timeout(120)


def budget(seconds: float, now_s: list[float]) -> Budget:
    return Budget(seconds, lambda value: value, lambda: now_s[0])


def test_what_fits_is_a_beginning_and_the_rest_is_named() -> None:
    now_s = [5.0]
    kept = budget(100.0, now_s)
    now_s[0] = 25.0
    assert kept.left_s() == 80.0
    things = [1.0, 2.0, 4.0, 0.1]
    rounds = 10 - SET_UP_ROUNDS
    assert kept.affordable(things, float, rounds, 0.5, str) == [1.0, 2.0]  # 30 of 40 seconds; 4.0 is too much
    assert kept.left_out == ["4.0", "0.1"]
    now_s[0] = 1000.0
    assert kept.left_s() == 0.0
    assert kept.affordable(things, float, rounds, 0.5, str) == []


def test_all_ranks_see_the_clock_that_is_furthest() -> None:
    now_s = [0.0]
    kept = Budget(10.0, lambda value: max(value, 7.0), lambda: now_s[0])
    assert kept.left_s() == 3.0


def _measure(comm: hk.Communicator, limit_s: float) -> tuple[Table, list[str]]:
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(60))
    sizes = (16, 4096, 1 << 20, 16 << 20, 64 << 20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = measure_table(comm, Sweep(("all_reduce",), sizes, (), rounds=6, time_limit_s=limit_s))
    comm.finalize()
    return table, [str(each.message) for each in caught if "hocket tune" in str(each.message)]


def test_a_sweep_keeps_to_its_limit() -> None:
    (table, said), (other, quiet) = hk.spawn(_measure, 2, 1.0, timeout=100)
    measured = sorted({row.nbytes for row in table.rows})
    assert measured and max(measured) < 64 << 20 and table.hash == other.hash
    assert len(said) == 1 and not quiet
    assert_names(said[0], "1 s", "64 MiB")


def test_a_contest_without_times_chooses_nothing() -> None:
    """What there was no time for is left to the libraries' own ways."""
    contest = Contest(Group(2, ["mpi"]), 7, lambda pairs, rounds: {}, 0.0)
    assert contest.fit_links([1024]) == []
    assert list(contest.run([], [Fit("mpi", 1e-6, 1e-9, 0.0, 0.0)])) == []
