"""The applications, by name."""

from __future__ import annotations

import inspect
from functools import lru_cache

import hocket.bench.apps as folder
from hocket.bench.apps.base import Problem
from hocket.discovery import by_name, declared
from hocket.suggestions import check_known

_NO_PROBLEMS = ("base", "registry", "speedup")


@lru_cache
def problems() -> dict[str, type[Problem]]:
    """Return the classes of the applications' problems, by name.

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
    """Return the class of a problem; its arguments are a scale and a seed.

    Raises:
        InvalidArgument: the name is unknown; lists the known ones.
    """
    check_known("application", name, problems())
    return problems()[name]
