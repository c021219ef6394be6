"""Work of one rank that all of them wait for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TypeVar, cast

from hocket.comm import Communicator
from hocket.errors import InvalidState

T = TypeVar("T")


Ask = Callable[[], None]
_ASKS = "asks"


def on_rank_0(comm: Communicator, work: Callable[[], T]) -> T:
    """Do something on rank 0, and give all ranks what came out; called by all ranks.

    Raises:
        Exception: what `work` raised, on every rank.
        InvalidState: it raised what cannot be sent; says what that was.
    """
    return on_rank_0_asking(comm, lambda _: work(), lambda: None)


def on_rank_0_asking(comm: Communicator, work: Callable[[Ask], T], serve: Callable[[], object]) -> T:
    """Do something on rank 0 that may need the other ranks meanwhile, and give all ranks what came out; called by all
    ranks.

    Args:
        comm: of all ranks.
        work: is given a function that has every rank call `serve` once.
        serve: called by all ranks alike.

    Raises:
        Exception: what `work` raised, on every rank.
        InvalidState: it raised what cannot be sent; says what that was.
    """
    found: T | None = None
    problem: Exception | None = None

    def ask() -> None:
        comm.broadcast_object(_ASKS, 0)
        serve()

    if comm.rank == 0:
        try:
            found = work(ask)
        except Exception as error:  # whatever it is, the others are not to wait for it
            problem = as_picklable(error)
    while (message := comm.broadcast_object((found, problem), 0)) == _ASKS:
        serve()
    found, problem = message
    if problem is not None:
        raise problem
    return cast(T, found)


def as_picklable(error: Exception) -> Exception:
    """Return an error, or one that says the same where the other ranks could not be given it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does
        return InvalidState(f"{type(error).__name__}: {error}")
    return error
