"""torch's view of an operation in flight, and who completes its future."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from hocket import _native


class HocketWork(dist.Work):
    """A `torch.distributed.Work` over a native one.

    Args:
        native: the operation; None if it is over already.
        tensors: the result, as torch's futures give it.
        finish: what is left to do once the operation is over, e.g. copies into a list of tensors.
    """

    def __init__(
        self,
        native: _native.Work | None,
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._native = native
        self._tensors = tensors
        self._finish = finish
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if native is None:
            self._complete()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the result is in place; raises what the operation raised."""
        if self._native is not None:
            # torch passes a timeout of zero where the caller gave none
            self._native.wait(timeout.total_seconds() if timeout else None)
        self._complete()
        return True

    def is_completed(self) -> bool:
        """Whether the operation is over; also drives it."""
        if self._native is not None and not self._native.done:
            try:
                self._native.test()
            except Exception:
                return True  # over, and exception() or wait() says how
        return self._native is None or self._native.done

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return None if self._native is None else self._native.exception()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the result tensors.

        torch's C++ code waits for futures in a way that drives nothing. Inside of backward they are completed by
        `BackwardDrain`; elsewhere by the progress thread, which this starts.
        """
        if self._future is None:
            self._future = torch.futures.Future()
            if self._native is None or (self._native.done and self._finish is None):
                self._settle_future()
            elif not in_backward():
                self._native._on_finished(self._settle)
        return self._future

    def _settle(self) -> None:
        """Bring work and future to their end without raising; the operation is over."""
        if self.exception() is None:
            self._complete()
        else:
            self._settle_future()

    def _complete(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            with torch.no_grad():
                finish()
        self._settle_future()

    def _settle_future(self) -> None:
        if self._future is None or self._future.done():
            return
        error = self.exception()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(error)  # type: ignore[arg-type]


def in_backward() -> bool:
    """Whether this thread runs a backward pass right now."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


class BackwardDrain:
    """Completes, at the end of each backward pass, the operations that were issued in it.

    DistributedDataParallel waits for the futures of its buckets in a callback at the end of backward. Callbacks run in
    the order in which they were queued, and ours is queued with the first operation, before any bucket is complete.
    """

    def __init__(self) -> None:
        self._task = -1
        self._works: list[HocketWork] = []

    def add(self, work: HocketWork) -> None:
        """Take in a work that was issued during backward."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._works.clear()  # a pass that ended in an exception left them
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._drain)
        self._works.append(work)

    def _drain(self) -> None:
        self._task = -1
        works, self._works = self._works, []
        for index, work in enumerate(works):
            try:
                work.wait()
            except BaseException:
                for left in works[index:]:
                    left._settle() if left.is_completed() else None
                raise
