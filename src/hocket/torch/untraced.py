"""What torch.compile is to leave alone."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

_Class = TypeVar("_Class", bound=type)


def untraced(cls: _Class) -> _Class:
    """Have torch.compile run the methods of a class, and all that they call, as they are.

    Where a compiled function runs a part of itself as it is, torch would compile every Python function that its C++
    code calls meanwhile, such as the operations of a process group that `DistributedDataParallel` asks for.
    `torch.compiler.disable` would say the same, but imports the compiler for it.
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # since torch 2.7
        skip = frames._FrameAction.SKIP
        for member in vars(cls).values():
            if isinstance(member, FunctionType):
                frames.set_code_exec_strategy(member.__code__, frames._FrameExecStrategy(skip, skip))
    return cls
