"""Operations in torch's profiler: from their issue to their end, with the shapes of their inputs."""

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
    """An asynchronous event of torch's profiler, as gloo's operations are.

    To torch an event is asynchronous if it ends in another thread than it began in; its time counts as that of no
    function then. So the progress thread ends it when the operation is over, also where the program waits for it.

    As a context it is the issue of the operation: if that raises, the event ends.

    Args:
        name: of the operation.
        inputs: tensors whose shapes are shown.
    """

    def __init__(self, name: str, inputs: Sequence[torch.Tensor]) -> None:
        self._over: torch.futures.Future[Any] = torch.futures.Future()
        self._has_ended = threading.Event()
        record = _record_function_with_args_enter(f"hocket:{name}", *inputs)
        # Ends the record with the state of this thread, whichever one completes the future: the profiler is part of it.
        self._recorded = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, self._over)

    def __exit__(self, exception: type[BaseException] | None, *_: object) -> None:
        if exception is not None:
            self.end_with(None)

    def end_with(self, native: _native.Work | None) -> None:
        """Have it end with an operation; None: now."""
        if native is None:
            threading.Thread(target=self._end, name="hocket end of event").start()
            self.wait()
        else:
            native._on_finished(self._end)

    def wait(self) -> None:
        """Wait until it has ended, once the operation is over: the program may stop the profiler next."""
        self._has_ended.wait(_LONGEST_END_S)

    def _end(self) -> None:
        self._over.set_result(None)
        self._has_ended.set()


def profiled(name: str, inputs: Sequence[torch.Tensor]) -> AbstractContextManager[ProfiledOperation | None]:
    """Return the context to issue an operation in, which gives its event; None where no profiler runs here."""
    return ProfiledOperation(name, inputs) if _profiler_enabled() else _nothing
