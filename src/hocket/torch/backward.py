"""Backward passes: the operations that are issued in them, and who completes those."""

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
_ROUNDS_WITHOUT = 20  # of that length
_LONGEST_END_S = 5.0


class IssuedWork(Protocol):
    """What the end of a backward pass has to know of an operation that was issued in it.

    Attributes:
        is_drained: whether the end of the pass raises the error of the operation.
    """

    is_drained: bool

    def wait(self) -> bool:
        """Block until the result is in place; raises what the operation raised."""

    def is_completed(self) -> bool:
        """Return whether the operation is over."""

    def _settle(self) -> None:
        """Bring work and future to their end without raising; the operation is over."""

    def _hand_over(self) -> None:
        """Have the progress thread complete the operation."""


def in_backward() -> bool:
    """Whether this thread runs a backward pass right now."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


def accumulates_gradient() -> bool:
    """Whether this thread has just accumulated the gradient of a leaf, within a backward pass: hooks run there."""
    node = torch._C._current_autograd_node() if in_backward() else None
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


@untraced
class BackwardDrain:
    """Completes, at the end of each backward pass, the operations that were issued in backward passes so far.

    DistributedDataParallel waits for the futures of its buckets in a callback at the end of the pass that accumulates
    the last gradient. Callbacks run in the order in which they were queued, and ours is queued with the first operation
    of a pass, before any bucket is complete. That pass may be one within another (checkpoints that are reentrant),
    which issued some of them: so each pass ends with all operations.
    """

    def __init__(self) -> None:
        # by the id of the pass; the reference tells that torch has dropped the callback of a pass that raised
        self._passes: dict[int, tuple[list[IssuedWork], weakref.ref[_EndOfPass]]] = {}

    def add(self, work: IssuedWork) -> None:
        """Take in a work that was issued during backward."""
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
                _let_go(works[index:])
                raise

    def _abandon(self, task: int) -> None:
        works, _ = self._passes.pop(task, ([], None))
        _let_go(works)


@untraced
class _EndOfPass:
    """What torch calls at the end of a pass, and forgets if the pass raises.

    Args:
        drain: is called.
    """

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain

    def __call__(self) -> None:
        self._drain()


def _let_go(works: Sequence[IssuedWork]) -> None:
    for work in works:
        if work.is_completed():
            work._settle()
        else:
            work._hand_over()


class LastResort:
    """Hands operations to the progress thread whose future nobody has completed a moment after it was asked for.

    Something in C++ may wait for such a future before the pass ends that would complete it. The progress thread ends
    each operation at its deadline; it is not told of all of them at once, as it takes time from those who compute. For
    the same reason the thread that looks is not woken for each operation; it ends when there has been none for a while.
    """

    def __init__(self) -> None:
        self._watched: collections.deque[tuple[float, weakref.ref[IssuedWork]]] = collections.deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, work: IssuedWork) -> None:
        """Look at a work after `_PATIENCE_S` or little more."""
        with self._lock:
            self._watched.append((time.monotonic() + _PATIENCE_S, weakref.ref(work)))
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._look, name="hocket last resort", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Stop looking, before the interpreter stops threads in the midst of native code."""
        self._ended.set()
        if (thread := self._thread) is not None and thread.is_alive():
            thread.join(_LONGEST_END_S)

    def _look(self) -> None:
        rounds_without = 0
        while not self._ended.wait(_PATIENCE_S):
            due: list[weakref.ref[IssuedWork]] = []
            with self._lock:
                while self._watched and self._watched[0][0] <= time.monotonic():
                    due.append(self._watched.popleft()[1])
                rounds_without = 0 if due or self._watched else rounds_without + 1
                if rounds_without == _ROUNDS_WITHOUT:
                    self._thread = None
                    return
            for reference in due:
                if (work := reference()) is not None:
                    work._hand_over()


last_resort = LastResort()
atexit.register(last_resort.end)
