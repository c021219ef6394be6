"""torch's interface to an operation in flight, and the completion of its future."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hocket import _native
from hocket.errors import CommTimeout
from hocket.torch.backward import accumulates_gradient, last_resort
from hocket.torch.futures import DrivenFuture, Failure, fail
from hocket.torch.untraced import untraced

if TYPE_CHECKING:
    from hocket.comm import Communicator
    from hocket.torch.profile import ProfiledOperation

_LONGEST_PAUSE_S = 0.001


@untraced
class HocketWork(dist.Work):
    """A `torch.distributed.Work` over a native work.

    Args:
        native: the operation; None if it is over already.
        tensors: the result, which is the value of the future.
        finish: called once when the operation is over, e.g. to copy into a list of tensors.
        source: the sender of a message.
        event: event of torch's profiler, which ends with the operation.
    """

    def __init__(
        self,
        native: _native.Work | None,
        tensors: list[torch.Tensor],
        finish: Callable[[], object] | None = None,
        source: int = -1,
        event: ProfiledOperation | None = None,
    ) -> None:
        super().__init__()
        self._event = event
        if event is not None:
            event.end_with(native)
        self.is_drained = False  # whether the end of a backward pass raises the error of the operation
        self._source = source
        self._native = native
        self._tensors = tensors
        self._finish = finish
        self._finishing = None if finish is None else threading.RLock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._unsettled: list[torch.futures.Future[list[torch.Tensor]]] = []
        if native is None:
            self._complete()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the result is in place; raise the error of the operation."""
        if self._native is not None:
            # torch passes a timeout of zero if the caller passed none
            self._native.wait(timeout.total_seconds() if timeout else None)
        if self._event is not None:
            self._event.wait()
        self._complete()
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over; also drive it."""
        is_over = self._native is None or self._native.done or self._native._drive()
        if is_over and self._event is not None:
            self._event.wait()
        return is_over

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return None if self._native is None else self._native.exception()

    def _peek(self) -> BaseException | None:
        """Return the error like `exception`, without marking it as raised in the program."""
        return None if self._native is None else self._native._peek()

    def _source_rank(self) -> int:
        return self._source

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the result tensors.

        torch's C++ code waits for futures without driving operations. If a gradient has just been accumulated, the
        future is completed by a wait in Python, by the end of the backward pass (`BackwardDrain`), or at last by
        `LastResort`. In all other cases the progress thread completes it, since callbacks at the end of a pass may wait
        for operations that they have just issued, as DistributedDataParallel with `static_graph` does.
        """
        if self._future is None:
            self._future = DrivenFuture(self._drive, self.exception)
            self._unsettled.append(self._future)
            if self._native is None or (self._native.done and self._finish is None):
                self._settle_future()
            elif accumulates_gradient():
                last_resort.watch(self)
            else:
                self._hand_over()
        return self._future

    def _hand_over(self) -> None:
        """Have the progress thread complete the operation, within its deadline, unless its future is complete."""
        if self._native is not None and self._unsettled:
            self._native._on_finished(self._settle)

    def _drive(self) -> None:
        """Wait for the operation, and complete the future with its result or its error."""
        try:
            self.wait()
        except Exception:
            self._settle_future()

    def _settle(self) -> None:
        """Complete work and future without raising; called when the operation is over."""
        if self._peek() is None:
            self._complete()
        else:
            self._settle_future()

    def _complete(self) -> None:
        """Call `finish` once, and complete the future. The progress thread and a waiting thread may both call this;
        each returns when `finish` is done."""
        if self._finishing is not None:
            with self._finishing, torch.no_grad():
                finish, self._finish = self._finish, None
                if finish is not None:
                    finish()
        self._settle_future()

    def _settle_future(self) -> None:
        try:
            future = self._unsettled.pop()
        except IndexError:
            return  # no future was requested, or another thread completes it
        error = self._peek()
        if error is None:
            future.set_result(self._tensors)
        else:
            fail(future, Failure(error, self._tensors if self.is_drained else None, self.exception))


@untraced
class JoinedWork(HocketWork):
    """Several works as one work, which is over when all of them are.

    Args:
        works: the works.
        tensors: the result; None: the results of all works.
        finish, event: see `HocketWork`.
    """

    def __init__(
        self,
        works: Sequence[HocketWork],
        tensors: list[torch.Tensor] | None = None,
        finish: Callable[[], object] | None = None,
        event: ProfiledOperation | None = None,
    ) -> None:
        self._works = list(works)
        # One lane carries the works in order: when the last one is over, all are.
        last = next((work._native for work in reversed(self._works) if work._native is not None), None)
        self._joined = [tensor for work in self._works for tensor in work._tensors]
        super().__init__(last, self._joined if tensors is None else tensors, finish, event=event)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return super().wait(timeout)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def _peek(self) -> BaseException | None:
        return next((error for work in self._works if (error := work._peek()) is not None), None)

    def _complete(self) -> None:
        for work in self._works:  # the future of the last work may be complete before the other works are finished
            work.wait()
        super()._complete()


@untraced
class AnySourceWork(dist.Work):
    """A receive from the rank that sends first; every wait or poll tries to match it.

    Args:
        comm: a communicator of one host.
        x: the tensor that is received into.
        tag: tag of the message.
        event: see `HocketWork`.
    """

    def __init__(self, comm: Communicator, x: torch.Tensor, tag: int, event: ProfiledOperation | None = None) -> None:
        super().__init__()
        self._event = event
        self._comm, self._x, self._tag = comm, x, tag
        self._source = -1
        self._native: _native.Work | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit_s = timeout.total_seconds() if timeout else self._comm.timeout
        deadline = time.monotonic() + limit_s
        pause_s = 1e-6
        while not self._is_matched():
            if time.monotonic() > deadline:
                raise CommTimeout(
                    f"rank {self._comm.rank}: no rank has sent a message with tag {self._tag} within {limit_s:g} s"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # with an unknown sender, no rank wakes this one
        assert self._native is not None
        self._native.wait(max(0.0, deadline - time.monotonic()))
        if self._event is not None:
            self._event.wait()
        return True

    def is_completed(self) -> bool:
        if not self._is_matched():
            return False
        assert self._native is not None
        return self._native.test()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return None if self._native is None else self._native.exception()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._x]

    def _source_rank(self) -> int:
        return self._source

    def _is_matched(self) -> bool:
        if self._native is None and (source := self._comm.probe(self._tag)) is not None:
            self._source = source
            self._native = self._comm.irecv(self._x, source, self._tag, backend="shm")  # `probe` sees shm's messages
            if self._event is not None:
                self._event.end_with(self._native)
        return self._native is not None
