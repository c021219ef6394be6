"""The backends of a test, by their declarations (`hocket.backends.Tested`), so that new backends are included."""

from __future__ import annotations

import importlib

import pytest
from _pytest.mark.structures import ParameterSet

from hocket.backends import declarations

from .tier import full

ALL = [name for name, each in declarations().items() if each.tested]
"""All that can be tested on a machine without devices; shared memory first."""

WITH_COLLECTIVES = [name for name in ALL if declarations()[name].has_collectives]
"""Those with collectives of their own."""

MESSAGES_ALONE = [name for name in ALL if name not in WITH_COLLECTIVES]

BETWEEN_HOSTS = [name for name in ALL if declarations()[name].link_between_hosts]
"""Those that declare a link between hosts."""


def numbers_of_ranks(name: str) -> tuple[int, ...]:
    """Return the numbers of ranks that a backend is tested with."""
    tested = declarations()[name].tested
    return tested.num_ranks if tested else ()


def with_ranks(names: list[str], least: int = 1, quick_up_to: int = 3) -> list[ParameterSet]:
    """Return (name, number of ranks) for all numbers of ranks that backends declare.

    The quick tier has those of shared memory up to `quick_up_to`, and of every other one rank and one number beside it,
    which changes from backend to backend.
    """
    found = []
    for place, name in enumerate(names):
        several = [ranks for ranks in numbers_of_ranks(name) if ranks > 1]
        quick = range(quick_up_to + 1) if name == "shm" else (1, *several[place % max(1, len(several)) :][:1])
        found += [
            pytest.param(name, ranks, marks=() if ranks in quick else full)
            for ranks in numbers_of_ranks(name)
            if ranks >= least
        ]
    return found


def with_most_ranks(names: list[str], most: int) -> list[tuple[str, int]]:
    """Return (name, number of ranks) for the largest number that each backend declares, up to `most`."""
    return [(name, max(ranks for ranks in numbers_of_ranks(name) if ranks <= most)) for name in names]


def limit_threads(backend: str) -> None:
    """Limit torch to one thread if the backend uses torch."""
    if "torch" in declarations()[backend].requires.modules:
        importlib.import_module("torch").set_num_threads(1)
