"""Checks of arguments that `hocket.train.fit` and `hocket.keras.fit` share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from hocket.comm import Communicator
from hocket.errors import InvalidArgument


def check_seed(seed: Any) -> None:
    """Check a seed.

    Raises:
        InvalidArgument: `seed` is not an int between 0 and 2**32 - 1.
    """
    check_count("seed", seed, 0)
    if seed >= 1 << 32:
        raise InvalidArgument(f"seed must be less than 2**32, not {seed}")


def check_alike(comm: Communicator, **options: Any) -> None:
    """Check that options are equal on all ranks; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        options: picklable values with ``==``, by name.

    Raises:
        InvalidArgument: an option differs between ranks; raised on every rank.
    """
    of_ranks = comm.all_gather_object(options)
    for name in options:
        values = [each.get(name) for each in of_ranks]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise InvalidArgument(f"{name} must be equal on all ranks; {_difference(values[0], value, rank)}")


_MISSING = object()


def _difference(first: Any, other: Any, rank: int, place: str = "it") -> str:
    """Return what differs: of two lists or dictionaries the first items that do, not all of them."""
    if isinstance(first, list) and isinstance(other, list):
        named = {f"number {place}": pair for place, pair in enumerate(zip_longest(first, other, fillvalue=_MISSING))}
    elif isinstance(first, dict) and isinstance(other, dict):
        named = {name: (first.get(name, _MISSING), other.get(name, _MISSING)) for name in (*first, *other)}
    else:
        values = ["missing" if each is _MISSING else repr(each) for each in (first, other)]
        return f"{place} is {values[0]} on rank 0 and {values[1]} on rank {rank}"
    name, pair = next((name, pair) for name, pair in named.items() if pair[0] is not pair[1] and pair[0] != pair[1])
    return _difference(*pair, rank, name if place == "it" else f"{place}, {name}")


def name_ranks(ranks: Sequence[int]) -> str:
    """Return how an error names ranks.

    Examples:
        >>> from hocket.train.checks import name_ranks
        >>> name_ranks([1]), name_ranks([0, 2])
        ('rank 1', 'ranks 0, 2')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Check an argument that is a number of things.

    Raises:
        InvalidArgument: `value` is not an int, less than `least`, or more than 64 bits hold.
    """
    if type(value) is not int or not least <= value < 1 << 63:
        raise InvalidArgument(f"{name} must be an int of {least} or more, and below 2^63, not {value!r}")
