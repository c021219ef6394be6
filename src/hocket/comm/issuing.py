"""Methods of a communicator that change how operations are issued: prepared once, or side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from hocket import _native
from hocket.comm.policy import CHOOSABLE
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown


def prepare(comm: _native.Communicator, op: str, *arguments: Any, **options: Any) -> _native.Prepared:
    """Read the arguments of an operation once, to issue it again and again; nothing is sent yet.

    The backend is the one that carries it now, whatever policy is set later.

    Args:
        op: name of a method: a collective, "send" or "recv".
        arguments, options: as of that method, without async_op and deps.

    Raises:
        InvalidArgument: there is no such operation, or what its method raises.
        InvalidState: by `Prepared.start`, if it is in flight.
    """
    if op not in CHOOSABLE:
        raise InvalidArgument(unknown("operation", op, CHOOSABLE))
    comm._set_preparing(True)
    try:
        prepared = cast(_native.Prepared, getattr(comm, op)(*arguments, **options))
    finally:
        comm._set_preparing(False)
    prepared._set_again(partial(prepare, comm, op, *arguments, **options))
    return prepared


@contextmanager
def coalesced(comm: _native.Communicator) -> Iterator[None]:
    """Issue the operations of a ``with`` block side by side, and wait for all of them at its end.

    Those that touch the same bytes keep their order; operations on objects wait by themselves. Where the block
    raises, nothing is waited for: what was issued goes on.
    """
    comm._begin_coalescing()
    try:
        yield
    except BaseException:
        comm._end_coalescing()
        raise
    for work in comm._end_coalescing():
        work.wait()
