"""Reductions of Python objects: the operators that the names of reductions stand for."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.comm.reductions import meant
from hocket.errors import CollectiveMismatch, InvalidArgument

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


def find_fold(op: str | Fold) -> Callable[[Sequence[tuple[str, Any]]], Any]:
    """Return what folds the objects of all ranks, in rank order, each of which has the name of its rank's reduction.

    Raises:
        InvalidArgument: `op` is neither a name of a reduction nor a function.
    """
    fold: Callable[[Sequence[Any]], Any]
    if callable(op):
        fold = functools.partial(functools.reduce, op)
    elif op == "avg":
        fold = _average
    elif op in _OPERATORS:
        fold = functools.partial(functools.reduce, _OPERATORS[op])
    else:
        raise InvalidArgument(
            f"op must be one of {', '.join(map(repr, NAMES))}, or a function, not {op!r}{meant(op, NAMES)}"
        )
    return functools.partial(_fold_alike, fold)


def name_of(op: str | Fold) -> str:
    """Return what tells a reduction from others, as far as ranks can tell each other."""
    if isinstance(op, str):
        return repr(op)
    return f"the function {getattr(op, '__qualname__', type(op).__qualname__)}"


def _fold_alike(fold: Callable[[Sequence[Any]], Any], named: Sequence[tuple[str, Any]]) -> Any:
    names = [name for name, _ in named]
    other = next((rank for rank, name in enumerate(names) if name != names[0]), None)
    if other is not None:
        raise CollectiveMismatch(f"rank 0 reduces objects by {names[0]}, rank {other} by {names[other]}")
    return fold([obj for _, obj in named])


def _average(objects: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, objects) / len(objects)
