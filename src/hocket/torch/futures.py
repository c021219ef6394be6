"""Futures of operations, for torch's C++ code and for Python hooks; a failed future holds a `Failure`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from hocket.torch.untraced import untraced


@untraced
class DrivenFuture(torch.futures.Future[Any]):
    """A future that drives its operation while a thread waits for it, or for a future that `then` returned.

    Communication hooks of DDP wait within a backward pass, where no other thread drives the operation.

    Args:
        drive: completes the future of the operation.
        note_raised: see `Failure`.
    """

    def __init__(self, drive: Callable[[], None], note_raised: Callable[[], object]) -> None:
        super().__init__()
        self._drive, self._note_raised = drive, note_raised

    def wait(self) -> Any:
        if not self.done():
            self._drive()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        following = DrivenFuture(self._drive, self._note_raised)

        def follow(future: torch.futures.Future[Any]) -> None:
            outer, _callback.raised = _callback.raised, []
            try:
                following.set_result(callback(future))
                for note_raised in _callback.raised:
                    note_raised()
            except Exception as error:  # a wait for the following future raises it
                fail(following, Failure(error, note_raised=self._note_raised))
            finally:
                _callback.raised = outer

        self.add_done_callback(follow)
        return following


class Failure:
    """The value of a future whose operation failed, in place of tensors.

    Python code that waits for the future gets the error. DistributedDataParallel reads the value in C++, and pickles it
    to find tensors; of an exception, which torch's `set_exception` would store, it would read the first of no tensors.
    Pickling raises the error, except for an operation of a backward pass: the end of that pass raises it shortly after,
    with its type (`BackwardDrain`).

    Args:
        error: error of the operation.
        tensors: tensors for DistributedDataParallel until then; None: pickling raises.
        note_raised: called when the program gets the error.
    """

    def __init__(
        self,
        error: BaseException,
        tensors: list[torch.Tensor] | None = None,
        note_raised: Callable[[], object] = lambda: None,
    ) -> None:
        self.error, self.tensors, self.note_raised = error, tensors, note_raised

    def __reduce__(self) -> tuple[type, tuple[list[torch.Tensor]]]:
        if self.tensors is None:
            self.note_raised()
            raise self.error
        return list, (self.tensors,)

    def __repr__(self) -> str:
        # C++ that expects a tensor raises "Unable to cast <failed: ...> to Tensor": the program gets the error as text.
        self.note_raised()
        return f"<failed: {type(self.error).__name__}: {self.error}>"


class _Callback(threading.local):
    """The failures that the running callback of this thread got, by their `note_raised`; None outside of callbacks."""

    raised: list[Callable[[], object]] | None = None


_callback = _Callback()


def fail(future: torch.futures.Future[Any], failure: Failure) -> None:
    """Complete a future with a failure, which a wait in Python raises."""

    def unwrap(failure: Failure) -> NoReturn:
        if _callback.raised is None:
            failure.note_raised()
        else:
            _callback.raised.append(failure.note_raised)
        raise failure.error

    future._set_unwrap_func(unwrap)
    future.set_result(failure)
