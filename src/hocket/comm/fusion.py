"""Many small all_reduces as few large ones: in a ``with`` block, or by themselves in a bucket.

A message has a fixed cost on every library, and on most it is far above that of a copy. Fusion copies arrays of one
type into one, reduces that, and copies the results back (the tensor fusion of Horovod, arXiv 1802.05799).
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


class Fused:
    """Collects the all_reduces of a ``with`` block; made by `Communicator.fused`.

    What was collected is sent when it comes to `max_nbytes`, and at the end of the block, which waits for all of it.
    All ranks call the same in the same order, so all of them send at the same places.
    """

    def __init__(self, comm: _native.Communicator, max_nbytes: int, backend: str | None) -> None:
        self._comm = comm
        self._max_nbytes = _checked_limit(max_nbytes)
        self._backend = backend
        self._collected: dict[tuple[str, object], list[Any]] = {}
        self._nbytes: dict[tuple[str, object], int] = {}
        self._works: list[_native.Work] = []

    def all_reduce(self, x: Any, op: _native.ReduceName = "sum") -> None:
        """Reduce x over all ranks, in place; the result is there at the end of the block.

        Raises:
            InvalidType: x is no array. What else may be wrong with it shows when it is sent.
        """
        dtype, nbytes = _facts_of(x)
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
        if error is not None:  # what was sent goes on, the rest is dropped
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
        """Whether it is over, with its result in place or with an error."""
        return self._over.is_set()

    def exception(self) -> BaseException | None:
        """Return what went wrong; None while it is in flight, or if nothing did."""
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the result; what is collected until then is sent at once.

        Args:
            timeout: seconds; None: that of the communicator.

        Raises:
            CommTimeout: it is not over in that time.
            HocketError: what went wrong with it.
        """
        self._bucket._hurry(self._number)
        if not self._over.wait(self._bucket._comm.timeout if timeout is None else timeout):
            raise CommTimeout(f"all_reduce number {self._number} of a bucket is not over in its time")
        if self._error is not None:
            raise self._error


class Bucket:
    """Collects all_reduces until they are worth sending; made by `Communicator.bucket`.

    They are sent, by a thread of the bucket's, when they come to `max_nbytes`, when the oldest has waited for
    `max_seconds`, or when somebody waits for one. Each rank sees to that by itself and at another moment, so before
    anything is sent the ranks agree, by a minimum of eight bytes, on how much all of them have collected. The ranks
    call `all_reduce` in the same order; waits may come in any.

    A bucket has an issue order of its own. Leave it by `close` or a ``with`` block.
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
        self._num_wanted = 0  # those up to here somebody waits for
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()  # guards all of the above
        self._thread = threading.Thread(target=self._run, name="hocket bucket", daemon=True)
        self._thread.start()

    def all_reduce(self, x: Any, op: _native.ReduceName = "sum") -> Reduction:
        """Reduce x over all ranks, in place; x has to stay as it is until the result is there.

        Raises:
            InvalidType: x is no array. What else may be wrong with it raises from `Reduction.wait`.
            InvalidState: the bucket is closed.
            HocketError: what has broken the bucket before.
        """
        dtype, nbytes = _facts_of(x)
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
        """Send what is collected, and wait for it."""
        with self._changed:
            last = self._last
        if last is not None:
            last.wait()

    def close(self) -> None:
        """Send what is collected, and leave. Idempotent."""
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
        self._comm._leave(0.0)  # a round that others do not come to ends by this
        self._thread.join()

    def _hurry(self, number: int) -> None:
        with self._changed:
            self._num_wanted = max(self._num_wanted, number + 1)
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
        """Return when something is due; False if the bucket was closed."""
        with self._changed:
            while not self._is_closed:
                due_s = None
                if self._queue:
                    if self._nbytes >= self._max_nbytes or self._num_wanted > self._num_sent:
                        return True
                    due_s = self._queue[0]._queued_s + self._max_seconds - time.monotonic()
                    if due_s <= 0:
                        return True
                self._changed.wait(due_s)
            return False

    def _send_round(self) -> None:
        """Agree on what all ranks have collected, and reduce that. One rank's round is every rank's."""
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


def _facts_of(x: Any) -> tuple[object, int]:
    """Return what tells the type of an array's items from others, and its bytes."""
    if hasattr(x, "dtype") and hasattr(x, "nbytes"):
        return x.dtype, x.nbytes
    try:
        view = memoryview(x)
    except TypeError:
        raise InvalidType(f"argument x: expected an array, not {type(x).__name__}") from None
    return view.format, view.nbytes
