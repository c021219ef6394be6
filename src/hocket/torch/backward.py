"""Completion of the operations that are issued in backward passes."""

from __future__ import annotations

import atexit
import collections
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from hocket.torch.untraced import untraced

_PATIENCE_S = 0.05
_MOST_IDLE_ROUNDS = 20  # rounds of that length without a work, after which the thread ends
_LONGEST_END_S = 5.0


class IssuedWork(Protocol):
    """The interface of an operation that was issued in a backward pass.

    Attributes:
        is_drained: whether the end of the pass raises the error of the operation.
    """

    is_drained: bool

    def wait(self) -> bool:
        """Block until the result is in place; raise the error of the operation."""

    def is_completed(self) -> bool:
        """Return whether the operation is over."""

    def _settle(self) -> None:
        """Complete work and future without raising; called when the operation is over."""

    def _hand_over(self) -> None:
        """Have the progress thread complete the operation."""


def in_backward() -> bool:
    """Return whether this thread is running a backward pass."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


def accumulates_gradient() -> bool:
    """Return whether this thread has just accumulated a leaf's gradient in a backward pass, as in the hooks there."""
    node = torch._C._current_autograd_node() if in_backward() else None
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


@untraced
class BackwardDrain:
    """Completes, at the end of each backward pass, the operations that were issued in backward passes so far.

    DistributedDataParallel waits for the futures of its buckets in a callback at the end of the pass that accumulates
    the last gradient. Callbacks run in the order in which they were queued, and ours is queued with the first operation
    of a pass, before any bucket is complete. With reentrant checkpoints, passes are nested, and the outer pass may have
    issued some of the operations: so each pass completes the operations of all passes.
    """

    def __init__(self) -> None:
        # By the id of the pass. If a pass raises, torch drops the callback, and the weak reference calls `_abandon`.
        self._passes: dict[int, tuple[list[IssuedWork], weakref.ref[_EndOfPass]]] = {}

    def add(self, work: IssuedWork) -> None:
        """Add a work that was issued in the present backward pass."""
        task = torch._C._current_graph_task_id()
        if task not in self._passes:
            end = _EndOfPass(self._drain)
            self._passes[task] = [], weakref.ref(end, lambda _: self._abandon(task))
            torch.autograd.Variable._execution_engine.queue_callback(end)
        work.is_drained = True
        self._passes[task][0].append(work)

    def _drain(self) -> None:
        passes, self._passes = self._passes, {}
        works = [work for issued, _ in passes.values() for work in issued]
        for index, work in enumerate(works):
            try:
                work.wait()
            except BaseException:
                _complete_later(works[index:])
                raise

    def _abandon(self, task: int) -> None:
        works, _ = self._passes.pop(task, ([], None))
        _complete_later(works)


@untraced
class _EndOfPass:
    """The callback that torch calls at the end of a pass, and drops if the pass raises.

    Args:
        drain: the function to call.
    """

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain

    def __call__(self) -> None:
        self._drain()


def _complete_later(works: Sequence[IssuedWork]) -> None:
    """Settle works that are over; have the progress thread complete the others."""
    for work in works:
        if work.is_completed():
            work._settle()
        else:
            work._hand_over()


class LastResort:
    """Hands operations to the progress thread if their futures are incomplete some time after they were requested.

    C++ code may wait for such a future before the end of the pass, which would complete it. The progress thread ends
    each operation at its deadline. It does not get all operations at once, since it takes time from computing threads.
    For the same reason, this class's thread polls instead of being woken for each operation; it ends after some time
    without operations.
    """

    def __init__(self) -> None:
        self._watched: collections.deque[tuple[float, weakref.ref[IssuedWork]]] = collections.deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, work: IssuedWork) -> None:
        """Hand a work to the progress thread after `_PATIENCE_S` or little more, if it is incomplete then."""
        with self._lock:
            self._watched.append((time.monotonic() + _PATIENCE_S, weakref.ref(work)))
            if self._thread is None or not self._thread.is_alive():  # a forked process does not have the thread
                self._thread = threading.Thread(target=self._poll, name="hocket last resort", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Stop the thread, before the interpreter stops threads within native code."""
        self._ended.set()
        if (thread := self._thread) is not None and thread.is_alive():
            thread.join(_LONGEST_END_S)

    def _poll(self) -> None:
        idle_rounds = 0
        while not self._ended.wait(_PATIENCE_S):
            due: list[weakref.ref[IssuedWork]] = []
            with self._lock:
                while self._watched and self._watched[0][0] <= time.monotonic():
                    due.append(self._watched.popleft()[1])
                idle_rounds = 0 if due or self._watched else idle_rounds + 1
                if idle_rounds == _MOST_IDLE_ROUNDS:
                    self._thread = None
                    return
            for reference in due:
                if (work := reference()) is not None:
                    work._hand_over()


last_resort = LastResort()
atexit.register(last_resort.end)
