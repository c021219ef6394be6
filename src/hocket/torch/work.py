"""torch's view of an operation in flight, and who completes its future."""

from __future__ import annotations

import atexit
import collections
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from hocket import _native
from hocket.errors import CommTimeout
from hocket.torch.untraced import untraced

if TYPE_CHECKING:
    from hocket.comm import Communicator

_LONGEST_PAUSE_S = 0.001
_PATIENCE_S = 0.05
_ROUNDS_WITHOUT = 20  # of that length
_LONGEST_END_S = 5.0


@untraced
class HocketWork(dist.Work):
    """A `torch.distributed.Work` over a native one.

    Args:
        native: the operation; None if it is over already.
        tensors: the result, as torch's futures give it.
        finish: what is left to do once the operation is over, e.g. copies into a list of tensors.
        source: rank that a message is from.
    """

    def __init__(
        self,
        native: _native.Work | None,
        tensors: list[torch.Tensor],
        finish: Callable[[], object] | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
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
        """Block until the result is in place; raises what the operation raised."""
        if self._native is not None:
            # torch passes a timeout of zero where the caller gave none
            self._native.wait(timeout.total_seconds() if timeout else None)
        self._complete()
        return True

    def is_completed(self) -> bool:
        """Whether the operation is over; also drives it."""
        return self._native is None or self._native.done or self._native._drive()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return None if self._native is None else self._native.exception()

    def _peek(self) -> BaseException | None:
        """Return the same, where the program does not hear of it."""
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

        torch's C++ code waits for futures in a way that drives nothing. Where a gradient has just been accumulated,
        the end of the backward pass completes them (`BackwardDrain`), or who waits for them in Python before, or, at
        last, `LastResort`. Anywhere else the progress thread does, which this starts: callbacks at the end of a pass
        wait for what they have just issued themselves, as DistributedDataParallel with `static_graph` does.
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
        """Have the progress thread complete the operation, within its deadline, unless its future is settled."""
        if self._native is not None and self._unsettled:
            self._native._on_finished(self._settle)

    def _drive(self) -> None:
        """Bring the future to its end, however the operation ends."""
        try:
            self.wait()
        except Exception:
            self._settle_future()

    def _settle(self) -> None:
        """Bring work and future to their end without raising; the operation is over."""
        if self._peek() is None:
            self._complete()
        else:
            self._settle_future()

    def _complete(self) -> None:
        """Do what is left once the operation is over. The progress thread may come here as well as who waits: both go
        on when it is done."""
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
            return  # there is none, or another thread settles it
        error = self._peek()
        if error is None:
            future.set_result(self._tensors)
        else:
            _fail(future, Failure(error, self._tensors if self.is_drained else None, self.exception))


@untraced
class DrivenFuture(torch.futures.Future[Any]):
    """A future that drives its operation when it, or one that follows from it, is waited for.

    Communication hooks of DDP wait inside of backward, where no other thread would.

    Args:
        drive: completes the future of the operation.
        note_told: as of `Failure`.
    """

    def __init__(self, drive: Callable[[], None], note_told: Callable[[], object]) -> None:
        super().__init__()
        self._drive, self._note_told = drive, note_told

    def wait(self) -> Any:
        if not self.done():
            self._drive()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        following = DrivenFuture(self._drive, self._note_told)

        def follow(future: torch.futures.Future[Any]) -> None:
            heard, _callback.heard = _callback.heard, []
            try:
                following.set_result(callback(future))
                for note_told in _callback.heard:
                    note_told()
            except Exception as error:  # whoever waits for what follows hears of it
                _fail(following, Failure(error, note_told=self._note_told))
            finally:
                _callback.heard = heard

        self.add_done_callback(follow)
        return following


class Failure:
    """What a future has in the place of tensors where the operation failed.

    Python that waits for the future gets the error. DistributedDataParallel takes the value in C++ and looks for
    tensors by pickling it; of an exception, as torch's `set_exception` has it, it would read the first of no tensors.
    Pickling raises the error, but for an operation of a backward pass, whose end raises it, with its type, a moment
    later (`BackwardDrain`).

    Args:
        error: of the operation.
        tensors: for DistributedDataParallel meanwhile; None: pickling raises.
        note_told: is called when the program hears of the error.
    """

    def __init__(
        self,
        error: BaseException,
        tensors: list[torch.Tensor] | None = None,
        note_told: Callable[[], object] = lambda: None,
    ) -> None:
        self.error, self.tensors, self.note_told = error, tensors, note_told

    def __reduce__(self) -> tuple[type, tuple[list[torch.Tensor]]]:
        if self.tensors is None:
            self.note_told()
            raise self.error
        return list, (self.tensors,)

    def __repr__(self) -> str:
        return f"<failed: {type(self.error).__name__}: {self.error}>"


class _Callback(threading.local):
    """Of which failures the callback that runs in this thread has heard; None outside of callbacks."""

    heard: list[Callable[[], object]] | None = None


_callback = _Callback()


def _fail(future: torch.futures.Future[Any], failure: Failure) -> None:
    def unwrap(failure: Failure) -> NoReturn:
        if _callback.heard is None:
            failure.note_told()
        else:
            _callback.heard.append(failure.note_told)
        raise failure.error

    future._set_unwrap_func(unwrap)
    future.set_result(failure)


@untraced
class JoinedWork(HocketWork):
    """Several works as one; over when all of them are.

    Args:
        works: that it is made of.
        tensors: the result; None: those of all works.
        finish: as of `HocketWork`.
    """

    def __init__(
        self,
        works: Sequence[HocketWork],
        tensors: list[torch.Tensor] | None = None,
        finish: Callable[[], object] | None = None,
    ) -> None:
        self._works = list(works)
        # One lane carries them in order: the last one tells a future, and the others are over by then.
        last = next((work._native for work in reversed(self._works) if work._native is not None), None)
        self._joined = [tensor for work in self._works for tensor in work._tensors]
        super().__init__(last, self._joined if tensors is None else tensors, finish)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        self._complete()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def _peek(self) -> BaseException | None:
        return next((error for work in self._works if (error := work._peek()) is not None), None)

    def _complete(self) -> None:
        for work in self._works:  # the future of the last one may be told before the others are over
            work.wait()
        super()._complete()


@untraced
class AnySourceWork(dist.Work):
    """A receive from whichever rank sends first; it is matched when it is asked about.

    Args:
        comm: communicator of one host.
        x: that is received into.
        tag: of the message.
    """

    def __init__(self, comm: Communicator, x: torch.Tensor, tag: int) -> None:
        super().__init__()
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
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # nobody rings where nobody is known to send
        assert self._native is not None
        self._native.wait(max(0.0, deadline - time.monotonic()))
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
            self._native = self._comm.irecv(self._x, source, self._tag, backend="shm")  # where it was seen
        return self._native is not None


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
        self._passes: dict[int, tuple[list[HocketWork], weakref.ref[_EndOfPass]]] = {}

    def add(self, work: HocketWork) -> None:
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


def _let_go(works: Sequence[HocketWork]) -> None:
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
        self._watched: collections.deque[tuple[float, weakref.ref[HocketWork]]] = collections.deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, work: HocketWork) -> None:
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
            due: list[weakref.ref[HocketWork]] = []
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
