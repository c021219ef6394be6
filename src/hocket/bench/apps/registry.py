"""The applications, by name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import hocket.bench.apps as folder
from hocket.bench.apps.base import Problem
from hocket.errors import InvalidArgument

_NO_PROBLEMS = ("base", "rank", "registry", "speedup")


@lru_cache
def problems() -> dict[str, type[Problem]]:
    """Return the kinds of problems, by name."""
    names = [each.name for each in pkgutil.iter_modules(folder.__path__) if each.name not in _NO_PROBLEMS]
    modules = [importlib.import_module(f"{folder.__name__}.{name}") for name in names]
    return {module.PROBLEM.name: module.PROBLEM for module in modules}


def find_problem(name: str) -> type[Problem]:
    """Return a kind of problem; its arguments are its scale and a seed.

    Raises:
        InvalidArgument: there is none of the name.
    """
    if name not in problems():
        raise InvalidArgument(f"there is no application {name!r}; there are {', '.join(problems())}")
    return problems()[name]
