"""Futures of operations as torch's C++ code and Python hooks use them: who drives them, and what a failed one holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from hocket.torch.untraced import untraced


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
                fail(following, Failure(error, note_told=self._note_told))
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


def fail(future: torch.futures.Future[Any], failure: Failure) -> None:
    def unwrap(failure: Failure) -> NoReturn:
        if _callback.heard is None:
            failure.note_told()
        else:
            _callback.heard.append(failure.note_told)
        raise failure.error

    future._set_unwrap_func(unwrap)
    future.set_result(failure)
