"""Reductions of Python objects: the operators that the names of reductions stand for."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.comm.reductions import meant
from hocket.errors import InvalidArgument

Fold = Callable[[Any, Any], Any]

_OPERATORS: Mapping[str, Fold] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
    "land": lambda a, b: bool(a) and bool(b),
    "lor": lambda a, b: bool(a) or bool(b),
    "lxor": lambda a, b: bool(a) != bool(b),
}
NAMES = (*_OPERATORS, "avg")


def find_fold(op: str | Fold) -> Callable[[Sequence[Any]], Any]:
    """Return what folds the objects of all ranks, in rank order.

    Raises:
        InvalidArgument: `op` is neither a name of a reduction nor a function.
    """
    if callable(op):
        return functools.partial(functools.reduce, op)
    if op == "avg":
        return lambda objects: functools.reduce(operator.add, objects) / len(objects)
    if op not in _OPERATORS:
        raise InvalidArgument(
            f"op must be one of {', '.join(map(repr, NAMES))}, or a function, not {op!r}{meant(op, NAMES)}"
        )
    return functools.partial(functools.reduce, _OPERATORS[op])
