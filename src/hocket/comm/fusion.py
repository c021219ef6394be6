"""Many small all_reduces as few large ones: collected in a ``with`` block, or continuously in a bucket.

A message has a fixed cost on every library, and on most libraries this cost is far higher than that of a copy. Fusion
copies arrays of one type into one array, reduces it, and copies the results back (the tensor fusion of Horovod, arXiv
1802.05799).
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import TracebackType
from typing import Any, Protocol

from hocket import _native
from hocket.errors import CommTimeout, InvalidArgument, InvalidState, InvalidType


class BucketCommunicator(Protocol):
    """What a bucket needs of its own communicator."""

    @property
    def timeout(self) -> float: ...
    @property
    def all_reduce(self) -> Callable[..., Any]: ...
    @property
    def all_reduce_coalesced(self) -> Callable[..., Any]: ...
    def _leave(self, drain_timeout_s: float) -> BaseException | None: ...


class HasBuckets(Protocol):
    """What `bucket` needs of a communicator."""

    @property
    def is_virtual(self) -> bool: ...
    @property
    def dup(self) -> Callable[[], BucketCommunicator]: ...


def fused(comm: _native.Communicator, *, max_nbytes: int = 4 << 20, backend: str | None = None) -> Fused:
    """Combine the all_reduces of a ``with`` block into few large ones.

    Args:
        max_nbytes: largest number of bytes, of one type and reduction, that are combined.
        backend: as for `all_reduce`.

    Examples:
        >>> gradients = [np.ones(3), np.full(2, 2.0)]
        >>> with comm.fused() as fused:
        ...     for x in gradients:
        ...         fused.all_reduce(x)
        >>> gradients
        [array([2., 2., 2.]), array([4., 4.])]
    """
    return Fused(comm, max_nbytes, backend)


def bucket(
    comm: HasBuckets, *, max_nbytes: int = 4 << 20, max_seconds: float = 0.005, backend: str | None = None
) -> Bucket:
    """Make a bucket, which collects all_reduces and sends them together; called by all members.

    Args:
        max_nbytes: the bucket sends when it holds this number of bytes.
        max_seconds: the bucket sends when its oldest all_reduce is this old.
        backend: as for `all_reduce`.

    Raises:
        InvalidState: the ranks are virtual, and so have no thread for a bucket.

    Examples:
        >>> x, y = np.ones(2), np.full(2, 3.0)
        >>> with comm.bucket() as bucket:
        ...     works = [bucket.all_reduce(each) for each in (x, y)]
        ...     works[1].wait()
        >>> x, y
        (array([2., 2.]), array([6., 6.]))
    """
    if comm.is_virtual:
        raise InvalidState("a bucket needs its own thread, which virtual ranks do not have; use fused()")
    return Bucket(comm.dup, max_nbytes, max_seconds, backend)


class Fused:
    """Collects the all_reduces of a ``with`` block; made by `Communicator.fused`.

    The collected arrays are sent when they reach `max_nbytes`, and at the end of the block, which waits for all of
    them. All ranks make the same calls in the same order, so all of them send at the same points.
    """

    def __init__(self, comm: _native.Communicator, max_nbytes: int, backend: str | None) -> None:
        self._comm = comm
        self._max_nbytes = _checked_limit(max_nbytes)
        self._backend = backend
        self._collected: dict[tuple[str, object], list[Any]] = {}
        self._nbytes: dict[tuple[str, object], int] = {}
        self._works: list[_native.Work] = []

    def all_reduce(self, x: Any, op: _native.ReduceName = "sum") -> None:
        """Reduce x over all ranks, in place; x holds the result at the end of the block.

        Raises:
            InvalidType: x is not an array. Other errors are raised when x is sent.
        """
        dtype, nbytes = _dtype_and_nbytes(x)
        key = (op, dtype)
        if self._nbytes.get(key, 0) + nbytes > self._max_nbytes:
            self._send(key)
        self._collected.setdefault(key, []).append(x)
        self._nbytes[key] = self._nbytes.get(key, 0) + nbytes

    def __enter__(self) -> Fused:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:  # arrays that were sent stay in flight, the rest is dropped
            return
        for key in list(self._collected):
            self._send(key)
        for work in self._works:
            work.wait()

    def _send(self, key: tuple[str, object]) -> None:
        self._nbytes[key] = 0
        if xs := self._collected.pop(key, []):
            self._works.append(_reduce_together(self._comm, xs, key[0], self._backend))


@dataclass
class Reduction:
    """The handle of an all_reduce in a bucket."""

    _bucket: Bucket = field(repr=False)
    _number: int
    _x: Any = field(repr=False)
    _op: str
    _dtype: object
    _nbytes: int
    _queued_s: float
    _over: threading.Event = field(default_factory=threading.Event, repr=False)
    _error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether it has completed or failed."""
        return self._over.is_set()

    def exception(self) -> BaseException | None:
        """Return its error; None while it is in flight, and if it succeeded."""
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the result; everything that was collected up to this all_reduce is sent at once.

        Args:
            timeout: seconds; None: the communicator's timeout.

        Raises:
            CommTimeout: it did not complete in that time.
            HocketError: the error of this all_reduce.
        """
        self._bucket._send_up_to(self._number)
        limit_s = self._bucket._comm.timeout if timeout is None else timeout
        if not self._over.wait(limit_s):
            raise CommTimeout(f"all_reduce number {self._number} of a bucket did not complete within {limit_s:g} s")
        if self._error is not None:
            raise self._error


class Bucket:
    """Collects all_reduces until they are worth sending; made by `Communicator.bucket`.

    A thread of the bucket sends them when they reach `max_nbytes`, when the oldest is `max_seconds` old, or when the
    program waits for one of them. Ranks reach these conditions at different times, so before each round they agree, by
    an all_reduce with "min" of eight bytes, on how many all_reduces every rank has collected. All ranks call
    `all_reduce` in the same order; they can wait in any order.

    A bucket has its own issue order. Leave it with `close` or a ``with`` block.
    """

    def __init__(
        self, dup: Callable[[], BucketCommunicator], max_nbytes: int, max_seconds: float, backend: str | None
    ) -> None:
        self._max_nbytes = _checked_limit(max_nbytes)
        if not isinstance(max_seconds, (int, float)) or not max_seconds > 0:
            raise InvalidArgument(f"max_seconds must be a number of seconds above zero, not {max_seconds!r}")
        self._max_seconds = max_seconds
        self._backend = backend
        self._comm = dup()
        self._queue: deque[Reduction] = deque()
        self._last: Reduction | None = None
        self._nbytes = 0
        self._num_queued = 0
        self._num_sent = 0
        self._num_awaited = 0  # the program waits for one of the first so many
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()  # guards all of the above
        self._thread = threading.Thread(target=self._run, name="hocket bucket", daemon=True)
        self._thread.start()

    def all_reduce(self, x: Any, op: _native.ReduceName = "sum") -> Reduction:
        """Reduce x over all ranks, in place; do not change x before the result is there.

        Raises:
            InvalidType: x is not an array. Other errors are raised by `Reduction.wait`.
            InvalidState: the bucket is closed.
            HocketError: the error that has broken the bucket.
        """
        dtype, nbytes = _dtype_and_nbytes(x)
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise InvalidState("the bucket is closed")
            reduction = Reduction(self, self._num_queued, x, op, dtype, nbytes, time.monotonic())
            self._queue.append(reduction)
            self._last = reduction
            self._num_queued += 1
            self._nbytes += nbytes
            if len(self._queue) == 1 or self._nbytes >= self._max_nbytes:
                self._changed.notify()
        return reduction

    def flush(self) -> None:
        """Send everything that is collected, and wait for it."""
        with self._changed:
            last = self._last
        if last is not None:
            last.wait()

    def close(self) -> None:
        """Send everything that is collected, wait for it, and leave. Idempotent."""
        if not self._is_closed:
            self.flush()
        self._leave()

    def __enter__(self) -> Bucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._comm._leave(0.0)  # this ends a round that other ranks do not join
        self._thread.join()

    def _send_up_to(self, number: int) -> None:
        with self._changed:
            self._num_awaited = max(self._num_awaited, number + 1)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._send_round()
        except Exception as error:
            with self._changed:
                self._error = error
                dropped = list(self._queue)
                self._queue.clear()
            _finish(dropped, error)

    def _wait_for_work(self) -> bool:
        """Wait until something must be sent; return False if the bucket was closed."""
        with self._changed:
            while not self._is_closed:
                due_s = None
                if self._queue:
                    if self._nbytes >= self._max_nbytes or self._num_awaited > self._num_sent:
                        return True
                    due_s = self._queue[0]._queued_s + self._max_seconds - time.monotonic()
                    if due_s <= 0:
                        return True
                self._changed.wait(due_s)
            return False

    def _send_round(self) -> None:
        """Agree on the all_reduces that every rank has collected, and run them. All ranks take part in a round."""
        with self._changed:
            collected = array("q", [self._num_queued])
        self._comm.all_reduce(collected, "min")
        with self._changed:
            ready = [self._queue.popleft() for _ in range(collected[0] - self._num_sent)]
            self._num_sent = collected[0]
            self._nbytes -= sum(each._nbytes for each in ready)
        works: list[tuple[list[Reduction], _native.Work]] = []
        for (op, _), group in groupby(ready, key=lambda each: (each._op, each._dtype)):
            members = list(group)
            try:
                work = _reduce_together(self._comm, [each._x for each in members], op, self._backend)
            except Exception as error:
                _finish(members, error)
            else:
                works.append((members, work))
        for members, work in works:
            try:
                work.wait()
            except Exception as error:
                _finish(members, error)
            else:
                _finish(members, None)


def _finish(reductions: Sequence[Reduction], error: BaseException | None) -> None:
    for each in reductions:
        each._error = error
        each._over.set()


def _reduce_together(
    comm: _native.Communicator | BucketCommunicator, xs: list[Any], op: Any, backend: str | None
) -> _native.Work:
    work: _native.Work = (
        comm.all_reduce(xs[0], op, backend=backend, async_op=True)
        if len(xs) == 1
        else comm.all_reduce_coalesced(xs, op, backend=backend, async_op=True)
    )
    return work


def _checked_limit(max_nbytes: int) -> int:
    if not isinstance(max_nbytes, int) or max_nbytes < 1:
        raise InvalidArgument(f"max_nbytes must be a number of bytes of 1 or more, not {max_nbytes!r}")
    return max_nbytes


def _dtype_and_nbytes(x: Any) -> tuple[object, int]:
    """Return a key for the type of an array's items, and the array's size in bytes."""
    if hasattr(x, "dtype") and hasattr(x, "nbytes"):
        return x.dtype, x.nbytes
    try:
        view = memoryview(x)
    except TypeError:
        raise InvalidType(f"argument x: expected an array, not {type(x).__name__}") from None
    return view.format, view.nbytes
