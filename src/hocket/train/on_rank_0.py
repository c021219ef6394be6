"""Work that rank 0 does while the other ranks wait for its result."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TypeVar, cast

from hocket.comm import Communicator
from hocket.errors import InvalidState

T = TypeVar("T")


CallAllRanks = Callable[[], None]
_CALL = "call"


def on_rank_0(comm: Communicator, work: Callable[[], T]) -> T:
    """Call a function on rank 0 and return its result on every rank; called by all ranks.

    Raises:
        Exception: `work` raised it; raised on every rank.
        InvalidState: `work` raised an error that cannot be pickled; the message has the type and text of that error.
    """
    return on_rank_0_with_calls(comm, lambda _: work(), lambda: None)


def on_rank_0_with_calls(comm: Communicator, work: Callable[[CallAllRanks], T], serve: Callable[[], object]) -> T:
    """Call a function on rank 0 that may need the other ranks, and return its result on every rank; called by all
    ranks.

    Args:
        comm: a communicator of all ranks.
        work: the function. Its argument is a function that makes every rank call `serve` once.
        serve: called by all ranks at the same time; may communicate.

    Raises:
        Exception: `work` raised it; raised on every rank.
        InvalidState: `work` raised an error that cannot be pickled; the message has the type and text of that error.
    """
    result: T | None = None
    problem: Exception | None = None

    def call_all_ranks() -> None:
        comm.broadcast_object(_CALL, 0)
        serve()

    if comm.rank == 0:
        try:
            result = work(call_all_ranks)
        except Exception as error:  # the other ranks must not wait for a rank that has failed
            problem = as_picklable(error)
    while (message := comm.broadcast_object((result, problem), 0)) == _CALL:
        serve()
    result, problem = message
    if problem is not None:
        raise problem
    return cast(T, result)


def as_picklable(error: Exception) -> Exception:
    """Return the error if it can be pickled, else an InvalidState with its type and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a class of errors may raise anything here
        return InvalidState(f"{type(error).__name__}: {error}")
    return error
