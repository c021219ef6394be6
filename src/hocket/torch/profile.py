"""Events of operations in torch's profiler: from issue to end, with the shapes of the inputs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _profiler_enabled, _record_function_with_args_enter

if TYPE_CHECKING:
    from hocket import _native

_LONGEST_END_S = 1.0

_nothing = nullcontext()


class ProfiledOperation(AbstractContextManager["ProfiledOperation"]):
    """An asynchronous event of torch's profiler, as for gloo's operations.

    For torch, an event is asynchronous if it ends in another thread than it began in; its time is then not added to the
    time of a function. So the progress thread ends the event when the operation is over, even if the program waits for
    the operation.

    The operation is issued within the context; if that raises, the event ends.

    Args:
        name: name of the operation.
        inputs: tensors whose shapes are recorded.
    """

    def __init__(self, name: str, inputs: Sequence[torch.Tensor]) -> None:
        self._over: torch.futures.Future[Any] = torch.futures.Future()
        self._has_ended = threading.Event()
        record = _record_function_with_args_enter(f"hocket:{name}", *inputs)
        # Whichever thread completes the future, the record ends with this thread's state, which has the profiler.
        self._recorded = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, self._over)

    def __exit__(self, exception: type[BaseException] | None, *_: object) -> None:
        if exception is not None:
            self.end_with(None)

    def end_with(self, native: _native.Work | None) -> None:
        """Make the event end with an operation; None: end it now."""
        if native is None:
            threading.Thread(target=self._end, name="hocket end of event").start()
            self.wait()
        else:
            native._on_finished(self._end)

    def wait(self) -> None:
        """Wait until the event has ended, once the operation is over: the program may stop the profiler next."""
        self._has_ended.wait(_LONGEST_END_S)

    def _end(self) -> None:
        self._over.set_result(None)
        self._has_ended.set()


def profiled(name: str, inputs: Sequence[torch.Tensor]) -> AbstractContextManager[ProfiledOperation | None]:
    """Return a context for issuing an operation; its value is the event, or None if no profiler runs in this thread."""
    return ProfiledOperation(name, inputs) if _profiler_enabled() else _nothing
