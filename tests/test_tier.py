"""The quick tier: covering arrays cover their combinations, and samples are fixed."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from . import tier
from .tier import covering, halve, sample

CASES = list(product("abc", range(4), (True, False), "xy"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tier.VARIABLE, "quick")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_is_covered(strength: int) -> None:
    chosen = covering(CASES, tuple, strength)
    for places in combinations(range(4), strength):
        assert {tuple(case[at] for at in places) for case in chosen} == {
            tuple(case[at] for at in places) for case in CASES
        }
    assert len(chosen) < [10, 20, 40][strength - 1] < len(CASES)
    assert chosen == covering(CASES, tuple, strength)


@pytest.mark.usefixtures("quick")
def test_a_sample_is_the_same_each_time() -> None:
    assert sample(CASES, 5) == sample(CASES, 5)
    assert len(set(sample(CASES, 5))) == 5
    assert sample(CASES, 100) == CASES
    assert set(CASES[:3]) < set(sample(CASES, 5, always=CASES[:3]))
    assert len(sample(CASES, 5, always=CASES[:3])) == 8


def test_tests_keep_other_halves_each() -> None:
    values = ["gloo", "mpi", "shm", "ucx"]
    tests = ("leaving", "death", "fork", "end")
    halves = [halve(values, lambda value, test=test: f"{test}[{value}]") for test in tests]
    assert all(len(half) == 2 for half in halves)
    assert set().union(*halves) == set(values)
    assert [len(halve(values[:count], str)) for count in range(4)] == [0, 1, 1, 2]


def test_the_full_tier_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tier.VARIABLE, "full")
    assert covering(CASES, tuple) == sample(CASES, 5) == CASES
