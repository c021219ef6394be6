"""The applications, by name."""

from __future__ import annotations

from functools import lru_cache

import hocket.bench.apps as folder
from hocket.bench.apps.base import Problem
from hocket.discovery import by_name, discover
from hocket.errors import InvalidArgument

_NO_PROBLEMS = ("base", "registry", "speedup")


@lru_cache
def problems() -> dict[str, type[Problem]]:
    """Return the kinds of problems, by name."""
    return by_name("application", [(each.PROBLEM.name, each.PROBLEM) for each in discover(folder, _NO_PROBLEMS)])


def find_problem(name: str) -> type[Problem]:
    """Return a kind of problem; its arguments are its scale and a seed.

    Raises:
        InvalidArgument: there is none of the name.
    """
    if name not in problems():
        raise InvalidArgument(f"there is no application {name!r}; there are {', '.join(problems())}")
    return problems()[name]
