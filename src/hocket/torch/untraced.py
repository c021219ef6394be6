"""Exclusion of classes from torch.compile."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

_Class = TypeVar("_Class", bound=type)


def untraced(cls: _Class) -> _Class:
    """Make torch.compile skip the methods of a class, and all functions that they call.

    While an uncompiled part of a compiled function runs, torch would compile every Python function that its C++ code
    calls, such as a process group's operations for `DistributedDataParallel`. `torch.compiler.disable` has the same
    effect, but imports the compiler.
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # since torch 2.7
        skip = frames._FrameAction.SKIP
        for member in vars(cls).values():
            if isinstance(member, FunctionType):
                frames.set_code_exec_strategy(member.__code__, frames._FrameExecStrategy(skip, skip))
    return cls
