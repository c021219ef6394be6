"""Reductions of Python objects: the Python operator for each name of a reduction."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.comm.reductions import suggest_reduction
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


def find_fold(op: str | Fold) -> tuple[Callable[[Sequence[Any]], Any], int]:
    """Return a function that reduces the objects of all ranks, in rank order, and the number of the reduction.

    Raises:
        InvalidArgument: `op` is neither a name of a reduction nor a function.
    """
    if callable(op):
        return functools.partial(functools.reduce, op), len(NAMES)
    if op not in NAMES:
        raise InvalidArgument(
            f"op must be one of {', '.join(map(repr, NAMES))}, or a function, not {op!r}{suggest_reduction(op, NAMES)}"
        )
    fold = _average if op == "avg" else functools.partial(functools.reduce, _OPERATORS[op])
    return fold, NAMES.index(op)


def check_same_reduction(numbers: Sequence[int]) -> None:
    """Check that all ranks use the same reduction. All functions have one number, so they are not compared.

    Args:
        numbers: the numbers from `find_fold`, by rank.

    Raises:
        CollectiveMismatch: the numbers differ.
    """
    other = next((rank for rank, number in enumerate(numbers) if number != numbers[0]), None)
    if other is not None:
        first, second = (_name_of(numbers[rank]) for rank in (0, other))
        raise CollectiveMismatch(f"rank 0 reduces objects by {first}, rank {other} by {second}")


def _name_of(number: int) -> str:
    return repr(NAMES[number]) if 0 <= number < len(NAMES) else "a function"


def _average(objects: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, objects) / len(objects)
