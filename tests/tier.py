"""Which tests run: `quick` is `make test`, with fixed samples of long tests; `full` is everything."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
VARIABLE = "HOCKET_TEST_TIER"

full = pytest.mark.full
"""Marks what `make test-full` alone runs."""


def is_full() -> bool:
    """Return whether all tests run."""
    return os.environ.get(VARIABLE) == "full"


def sample(cases: Iterable[T], count: int, always: Collection[T] = ()) -> list[T]:
    """Return all cases in the full tier, else those of `always` and `count` others, always the same."""
    everything = list(cases)
    others = [number for number, case in enumerate(everything) if case not in always]
    if is_full() or len(others) <= count:
        return everything
    left_out = set(others) - set(random.Random(len(others)).sample(others, count))
    return [case for number, case in enumerate(everything) if number not in left_out]


def covering(cases: Iterable[T], factors: Callable[[T], Sequence[Any]], strength: int = 2) -> list[T]:
    """Return all cases in the full tier, else a covering array: a few cases with every combination of values.

    Args:
        cases: of a product, or of part of one.
        factors: the values that a case combines, such as operation, type and number of ranks.
        strength: how many factors at a time have to be combined as in `cases`; 2 is every pair.

    The cases are chosen greedily, each the one that adds most (D. M. Cohen et al., "The AETG system", IEEE TSE 1997).
    """
    everything = list(cases)
    if is_full():
        return everything
    combinations = [_combinations(factors(case), strength) for case in everything]
    missing = set().union(*combinations)
    chosen: list[int] = []
    left = list(range(len(everything)))
    while missing:
        left = [number for number in left if combinations[number] & missing]
        best = max(left, key=lambda number: len(combinations[number] & missing))
        missing -= combinations[best]
        chosen.append(best)
    return [everything[number] for number in sorted(chosen)]


def halve(cases: Sequence[T], name: Callable[[T], str]) -> list[T]:
    """Return half of the cases, rounded up; the choice depends only on their names."""
    kept = sorted(range(len(cases)), key=lambda number: hashlib.sha256(name(cases[number]).encode()).digest())
    return [cases[number] for number in sorted(kept[: (len(cases) + 1) // 2])]


# Rooms whose tests are whole jobs with many cases: each single parameter value is enough.
_STRENGTHS = {"bench": 1, "boot": 1, "conformance": 1, "faults": 1, "mixing": 1}
# Of those, every second value; tests differ in their choice, so that all backends are covered.
_HALVED = ("conformance", "faults", "mixing")


def choose_items(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the quick tier: of one with several parameters a covering array of their values.

    Pairs are covered, or single values in some rooms; a test with one parameter keeps all of its values, but half of
    them where every test is a whole job.
    """
    chosen: list[pytest.Item] = []
    for (path, _), group in itertools.groupby(
        items, lambda item: (item.path, getattr(item, "originalname", item.name))
    ):
        strength = _STRENGTHS.get(path.parent.name, 2)
        tests = list(group)
        if len(_parameters(tests[0])) > strength:
            tests = covering(tests, _parameters, strength)
        chosen += halve(tests, lambda test: test.name) if path.parent.name in _HALVED else tests
    return chosen


def _parameters(item: pytest.Item) -> tuple[str, ...]:
    """The values of a test's parameters, as its id names them; those that are set together are one."""
    callspec = getattr(item, "callspec", None)
    return () if callspec is None else tuple(callspec._idlist)


def _combinations(values: Sequence[Any], strength: int) -> set[tuple[tuple[int, str], ...]]:
    named = [(place, repr(value)) for place, value in enumerate(values)]
    return set(itertools.combinations(named, min(strength, len(named))))
