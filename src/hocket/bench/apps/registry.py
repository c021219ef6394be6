"""The applications, by name."""

from __future__ import annotations

import inspect
from functools import lru_cache

import hocket.bench.apps as folder
from hocket.bench.apps.base import Problem
from hocket.discovery import by_name, declared
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown

_NO_PROBLEMS = ("base", "registry", "speedup")


@lru_cache
def problems() -> dict[str, type[Problem]]:
    """Return the kinds of problems, by name.

    Examples:
        >>> from hocket.bench import problems
        >>> sorted(problems())
        ['kmeans', 'knn', 'matmul']
    """
    found = declared(folder, "PROBLEM", "a subclass of Problem, with nothing abstract", _is_problem, _NO_PROBLEMS)
    return by_name("application", [(problem.name, module, problem) for module, problem in found])


def _is_problem(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Problem) and not inspect.isabstract(value)


def find_problem(name: str) -> type[Problem]:
    """Return a kind of problem; its arguments are its scale and a seed.

    Raises:
        InvalidArgument: there is none of the name.
    """
    if name not in problems():
        raise InvalidArgument(unknown("application", name, problems()))
    return problems()[name]
