"""Waiting for several operations, and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from hocket import _native
from hocket.comm.messages import listed
from hocket.errors import CommTimeout, InvalidArgument, InvalidType

_LOOKS_WITHOUT_SLEEP = 1000
_SLEEP_S = 50e-6


class Waitable(Protocol):
    """An operation in flight: a `Work`, a `Prepared` that was started, a reduction of the user's."""

    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...


def wait_all(works: Iterable[Waitable], timeout: float | None = None) -> None:
    """Wait for operations in flight; mpi4py's ``Request.Waitall``.

    Args:
        works: in any order; all of them make progress during the wait.
        timeout: seconds for all of them together. None: each operation keeps its own timeout.

    Raises:
        CommTimeout: an operation did not complete in time.
        HocketError: the error of the first operation in `works` that failed; later ones may still be in flight.
        InvalidType: something in `works` is no operation in flight, such as the None of a call without `async_op`.

    Example:
        >>> works = [comm.irecv(halo, left), comm.isend(edge, right)]
        >>> hk.wait_all(works)
    """
    works = listed("works", "operations in flight", works)
    _check_works(works)
    deadline = None if timeout is None else time.monotonic() + timeout
    for work in works:
        work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


def wait_any(works: Sequence[Waitable], timeout: float | None = None) -> int:
    """Wait until one of several operations in flight is done, and return its index; mpi4py's ``Request.Waitany``.

    Args:
        works: at least one operation.
        timeout: seconds. None: each operation keeps its own timeout.

    Raises:
        InvalidArgument: `works` is empty.
        InvalidType: as of `wait_all`.
        CommTimeout: no operation completed within `timeout` (all stay in flight), or one exceeded its own timeout.
        HocketError: the error of an operation that failed.

    Example:
        >>> works = [comm.irecv(buffers[src], src) for src in others]
        >>> first = hk.wait_any(works)
    """
    works = listed("works", "operations in flight", works)
    if not works:
        raise InvalidArgument("works must hold at least one operation; an empty list has nothing to wait for")
    _check_works(works)
    begin = time.monotonic()
    num_looks = 0
    while True:
        for index, work in enumerate(works):
            if work.test():
                return index
        num_looks += 1
        if timeout is not None and time.monotonic() - begin > timeout:
            raise CommTimeout(f"timed out after {timeout:g} s waiting for any of {len(works)} operations")
        if num_looks > _LOOKS_WITHOUT_SLEEP and not _native.is_virtual_rank():
            time.sleep(_SLEEP_S)


def _check_works(works: Sequence[Waitable]) -> None:
    for index, work in enumerate(works):
        if work is None:
            raise InvalidType(f"works[{index}] is None, which a call without async_op=True returns when it is over")
        if not hasattr(work, "wait") or not hasattr(work, "test"):
            raise InvalidType(f"works[{index}] must be an operation in flight, such as a Work, not {work!r}")


def wtime() -> float:
    """Return the seconds of this process's clock, to tell how long something took; mpi4py's ``MPI.Wtime``.

    In a simulated rank (`simulate`) it is the virtual clock, which starts at zero.

    Example:
        >>> begin = hk.wtime()
        >>> comm.all_reduce(x)
        >>> seconds = hk.wtime() - begin
    """
    return _native.virtual_now_s() if _native.is_virtual_rank() else time.perf_counter()
