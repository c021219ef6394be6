"""The public names of hocket, and the examples in their docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from types import GenericAlias
from typing import Any

import hocket

os.environ.setdefault("KERAS_BACKEND", "torch")  # hocket.keras is one of the rooms
ROOMS = (
    *("hocket", "hocket.backends", "hocket.bench", "hocket.collectives", "hocket.keras", "hocket.measure"),
    *(
        "hocket.memory",
        "hocket.observe",
        "hocket.pipeline",
        "hocket.sim",
        "hocket.torch",
        "hocket.torch.dist",
        "hocket.trace",
    ),
    *("hocket.train", "hocket.tune"),
)


def public_names(rooms: tuple[str, ...] = ROOMS) -> dict[str, Any]:
    """Return the functions and classes that the rooms name in `__all__`, by their full names."""
    found = {}
    for room in rooms:
        module = importlib.import_module(room)
        for name in module.__all__:
            each = getattr(module, name)
            is_documented = inspect.isclass(each) or (callable(each) and not isinstance(each, GenericAlias))
            if is_documented and not name.startswith("_"):
                found[f"{room}.{name}"] = each
    return found


def documented(name: str, each: Any) -> Iterator[tuple[str, Any]]:
    """Yield a public object, and the public methods and properties of a class of hocket's."""
    yield name, each
    if inspect.isclass(each) and each.__module__.startswith("hocket"):
        for base in each.__mro__:
            if base.__module__.startswith("hocket"):
                for member in vars(base):
                    if not member.startswith("_") and hasattr(each, member):
                        yield f"{name}.{member}", getattr(each, member)


def examples_of(name: str, each: Any) -> doctest.DocTest:
    """Return what stands behind ``>>>`` in a docstring."""
    return doctest.DocTestParser().get_doctest(inspect.getdoc(each) or "", {}, name, None, 0)


def needs_two_ranks(test: doctest.DocTest) -> bool:
    """Whether an example uses a communicator that it does not make, and not as the parameter of a function."""
    code = "".join(each.source for each in test.examples)
    makes_its_own = re.search(r"^comm = |as comm:$|def \w+\(comm\b|lambda comm\b", code, re.MULTILINE)
    return bool(re.search(r"(?<!\.)\bcomm\b", code)) and not makes_its_own


def run(test: doctest.DocTest, comm: Any = None) -> str:
    """Run an example with `hk`, `np` and, on two ranks, `comm`; return what went wrong, or nothing."""
    import numpy as np

    test.globs = {"hk": hocket, "np": np} | ({} if comm is None else {"comm": comm})
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=told.append, clear_globs=False)
    return "".join(told)
