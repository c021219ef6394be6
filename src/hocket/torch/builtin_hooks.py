"""DistributedDataParallel's built-in communication hooks for groups of hocket's.

The one that sends gradients as float16 takes a list of tensors out of the future of its all_reduce, in C++, and the
future of a group that is written in Python holds an object of Python's. torch has the same hook in Python, too.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def take_part_in_builtin_hooks(kind: type[dist.ProcessGroup]) -> None:
    """Have models whose group is of a class use the hook of that name in Python.

    Args:
        kind: the class; groups of all others are left to torch.
    """
    original: Any = DistributedDataParallel._register_builtin_comm_hook
    if getattr(original, "_takes_part", None) is kind:
        return

    @functools.wraps(original)
    def register_builtin_comm_hook(self: Any, comm_hook_type: BuiltinCommHookType) -> None:
        if comm_hook_type != BuiltinCommHookType.FP16_COMPRESS or not isinstance(self.process_group, kind):
            original(self, comm_hook_type)
            return
        self.register_comm_hook(self.process_group, fp16_compress_hook)
        self.logger._set_comm_hook_name(str(comm_hook_type))

    register_builtin_comm_hook._takes_part = kind  # type: ignore[attr-defined]
    DistributedDataParallel._register_builtin_comm_hook = register_builtin_comm_hook  # type: ignore[method-assign]
