"""Bad input is refused by every rank in the same words, and nothing is broken by it."""

from __future__ import annotations

from functools import lru_cache

import pytest

import hocket as hk

from .bad_input import CASES, LATE_CASES, refusals

pytestmark = pytest.mark.timeout(200)


@lru_cache
def found() -> list[dict[str, tuple[str, str]]]:
    return hk.spawn(refusals, 2, timeout=150)


@pytest.mark.parametrize("name", CASES)
def test_every_rank_refuses(name: str) -> None:
    _, kind, words = CASES[name]
    for of_rank in found():
        assert of_rank[name][0] == kind and words in of_rank[name][1], of_rank[name]


@pytest.mark.parametrize("name", LATE_CASES)
def test_the_other_rank_is_told(name: str) -> None:
    _, kind, words = LATE_CASES[name]
    waits, fails = (of_rank[name] for of_rank in found())
    assert fails[0] == kind and words in fails[1], fails
    assert waits[0] == "Aborted" and f"failed on rank 1: {kind}: " in waits[1] and words in waits[1], waits
