"""Waits for several operations, the corresponding methods of a communicator, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hocket import _native
from hocket.comm.messages import as_list
from hocket.errors import CommTimeout, InvalidArgument, InvalidType
from hocket.trace import Record

_POLLS_WITHOUT_SLEEP = 1000
_SLEEP_S = 50e-6


class Waitable(Protocol):
    """An operation in flight: a `Work`, a started `Prepared`, or a user-defined reduction."""

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
        InvalidType: an item of `works` is not an operation in flight, for example None from a call without `async_op`.

    Examples:
        >>> other = 1 - comm.rank
        >>> received = np.zeros(2)
        >>> works = [comm.irecv(received, other), comm.isend(np.full(2, 7.0), other)]
        >>> hk.wait_all(works)
        >>> received
        array([7., 7.])
    """
    works = as_list("works", "operations in flight", works)
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
        InvalidType: as for `wait_all`.
        CommTimeout: no operation completed within `timeout` (all stay in flight), or one exceeded its own timeout.
        HocketError: the error of an operation that failed.

    Examples:
        >>> other = 1 - comm.rank
        >>> received = np.zeros(1)
        >>> works = [comm.irecv(received, other, tag=1), comm.irecv(np.zeros(1), other, tag=2)]
        >>> comm.send(np.ones(1), other, tag=1)
        >>> hk.wait_any(works)  # the index of the message with tag 1
        0
        >>> comm.send(np.ones(1), other, tag=2)
        >>> works[1].wait()
    """
    works = as_list("works", "operations in flight", works)
    if not works:
        raise InvalidArgument("works must hold at least one operation; an empty list has nothing to wait for")
    _check_works(works)
    begin = time.monotonic()
    num_polls = 0
    while True:
        for index, work in enumerate(works):
            if work.test():
                return index
        num_polls += 1
        if timeout is not None and time.monotonic() - begin > timeout:
            raise CommTimeout(f"timed out after {timeout:g} s waiting for any of {len(works)} operations")
        if num_polls > _POLLS_WITHOUT_SLEEP and not _native.is_virtual_rank():
            time.sleep(_SLEEP_S)


def _check_works(works: Sequence[Waitable]) -> None:
    for index, work in enumerate(works):
        if work is None:
            raise InvalidType(f"works[{index}] is None, which a call without async_op=True returns on completion")
        if not hasattr(work, "wait") or not hasattr(work, "test"):
            raise InvalidType(f"works[{index}] must be an operation in flight, such as a Work, not {work!r}")


class Drainable(Protocol):
    """What `synchronize` and `quiesce` need of a communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def _label(self) -> str: ...
    @property
    def barrier(self) -> Callable[..., Any]: ...
    def _drain(self, timeout: float) -> bool: ...
    def records(self) -> list[Record]: ...


def synchronize(comm: Drainable, timeout: float | None = None) -> None:
    """Wait for every operation of this rank that is in flight on this communicator.

    Args:
        timeout: seconds; None: the communicator's timeout.

    Raises:
        CommTimeout: operations are still in flight after that time; the error names them.
        HocketError: the error that has broken the communicator. The error of a single operation is raised by its
            `Work`.

    Examples:
        >>> x, y = np.ones(2), np.ones(2)
        >>> works = [comm.all_reduce(x, async_op=True), comm.all_reduce(y, "max", async_op=True)]
        >>> comm.synchronize()
        >>> x, y
        (array([2., 2.]), array([1., 1.]))
    """
    limit_s = comm.timeout if timeout is None else timeout
    if not comm._drain(limit_s):
        left = [record for record in comm.records() if record.state in ("issued", "started", "waited")]
        names = ", ".join(f"{record.op} number {record.seq}" for record in left[:3])
        raise CommTimeout(
            f"rank {comm.rank} of {comm._label}: {len(left)} operations are in flight after {limit_s:g} s: {names}"
        )


def quiesce(comm: Drainable, timeout: float | None = None) -> None:
    """Wait until no operation is in flight on any member, e.g. before a checkpoint; called by all members.

    Args:
        timeout: seconds for this rank's operations, and again for the other members. None: the communicator's timeout.

    Raises:
        CommTimeout: the error names the operations in flight on this rank, or the members that did not enter.

    Examples:
        >>> x = np.ones(2)
        >>> work = comm.all_reduce(x, async_op=True)
        >>> comm.quiesce()  # now x can be saved on every rank
        >>> work.done
        True
    """
    synchronize(comm, timeout)
    comm.barrier(timeout=timeout, async_op=True).wait()  # waits also inside coalesced()


def wtime() -> float:
    """Return this process's clock in seconds, to measure durations; mpi4py's ``MPI.Wtime``.

    In a simulated rank (`simulate`) it is the virtual clock, which starts at zero.

    Examples:
        >>> begin = hk.wtime()
        >>> comm.barrier()
        >>> hk.wtime() - begin > 0
        True
    """
    return _native.virtual_now_s() if _native.is_virtual_rank() else time.perf_counter()
