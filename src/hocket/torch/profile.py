"""Operations in torch's profiler, with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._C._autograd import _profiler_enabled
from torch._C._profiler import _RecordFunctionFast

_nothing = nullcontext()


def recorded(name: str, inputs: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
    """Return a context under which the profiler, if it runs, sees ``hocket:name`` with these inputs."""
    if not _profiler_enabled():
        return _nothing
    return _RecordFunctionFast(f"hocket:{name}", list(inputs))
