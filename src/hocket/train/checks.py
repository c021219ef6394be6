"""Checks of arguments that both kinds of `fit` take."""

from __future__ import annotations

from typing import Any

from hocket.comm import Communicator
from hocket.errors import InvalidArgument


def check_seed(seed: Any) -> None:
    """Check a seed.

    Raises:
        InvalidArgument: it is no whole number that generators take.
    """
    check_count("seed", seed, 0)
    if seed >= 1 << 32:
        raise InvalidArgument(f"seed is less than 2**32, not {seed}")


def check_alike(comm: Communicator, **options: Any) -> None:
    """Check that all ranks have been given the same; called by all of them.

    Args:
        comm: of all ranks.
        options: numbers, words and the like, by name.

    Raises:
        InvalidArgument: they have not; raised on every rank.
    """
    of_ranks = comm.all_gather_object(options)
    for name in options:
        values = [each.get(name) for each in of_ranks]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise InvalidArgument(
                    f"{name} is {values[0]!r} on rank 0 and {value!r} on rank {rank}: give all the same"
                )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Check an argument that says how many.

    Raises:
        InvalidArgument: it is no int, or too small.
    """
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} is a whole number of {least} or more, not {value!r}")
