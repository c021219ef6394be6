"""Every rank refuses bad input with the same message, and can train afterwards."""

from __future__ import annotations

from functools import lru_cache

import pytest

import hocket as hk

from ..naming import assert_names
from .bad_input import CASES, LATE_CASES, refusals

pytestmark = pytest.mark.timeout(200)


@lru_cache
def found() -> list[dict[str, tuple[str, str]]]:
    return hk.spawn(refusals, 2, timeout=150)


@pytest.mark.parametrize("name", CASES)
def test_every_rank_refuses(name: str) -> None:
    _, kind, names = CASES[name]
    for of_rank in found():
        assert of_rank[name][0] == kind, of_rank[name]
        assert_names(of_rank[name][1], *((names,) if isinstance(names, str) else names))


@pytest.mark.parametrize("name", LATE_CASES)
def test_the_other_rank_is_told(name: str) -> None:
    _, kind, names = LATE_CASES[name]
    names = (names,) if isinstance(names, str) else names
    waits, fails = (of_rank[name] for of_rank in found())
    assert (fails[0], waits[0]) == (kind, "Aborted"), (fails, waits)
    assert_names(fails[1], *names)
    assert_names(waits[1], "rank 1", kind, *names)
