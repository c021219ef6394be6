"""Methods of a communicator that change how operations are issued: prepared once, or concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from hocket import _native
from hocket.comm.policy import CHOOSABLE
from hocket.suggestions import check_known


def prepare(comm: _native.Communicator, op: str, *arguments: Any, **options: Any) -> _native.Prepared:
    """Check the arguments of an operation once, so that it can be issued many times; nothing is sent yet.

    The backend is chosen now, and a policy that is set later does not change it.

    Args:
        op: name of a method: a collective, "send" or "recv".
        arguments, options: as for that method, without async_op and deps.

    Raises:
        InvalidArgument: the operation does not exist, or an argument is wrong as for its method.
        InvalidState: raised by `Prepared.start`, if the operation is in flight.

    Examples:
        >>> x = np.ones(2)
        >>> step = comm.prepare("all_reduce", x)
        >>> step()  # issues it and waits
        >>> step()
        >>> x
        array([4., 4.])
    """
    check_known("operation", op, CHOOSABLE)
    comm._set_preparing(True)
    try:
        prepared = cast(_native.Prepared, getattr(comm, op)(*arguments, **options))
    finally:
        comm._set_preparing(False)
    prepared._set_again(partial(prepare, comm, op, *arguments, **options))
    return prepared


@contextmanager
def coalesced(comm: _native.Communicator) -> Iterator[None]:
    """Run the operations of a ``with`` block concurrently, and wait for all of them at its end.

    Operations on the same bytes keep their order. Operations on objects still wait inside the block. If the block
    raises, its operations stay in flight and nothing is waited for.

    Examples:
        >>> x, y = np.ones(2), np.full(2, 5.0)
        >>> with comm.coalesced():
        ...     comm.all_reduce(x)
        ...     comm.all_reduce(y)
        >>> x, y
        (array([2., 2.]), array([10., 10.]))
    """
    comm._begin_coalescing()
    try:
        yield
    except BaseException:
        comm._end_coalescing()
        raise
    for work in comm._end_coalescing():
        work.wait()
