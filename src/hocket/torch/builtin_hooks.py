"""DistributedDataParallel's built-in communication hooks for hocket's process groups.

The hook that sends gradients as float16 reads a list of tensors from the future of its all_reduce in C++; the future of
a process group written in Python holds a Python object. torch has the same hook in Python, which is used instead.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def replace_builtin_hooks(kind: type[dist.ProcessGroup]) -> None:
    """Make models whose process group is of a class use the Python hook of the same name.

    Args:
        kind: the class; models with other groups use torch's own hooks.
    """
    original: Any = DistributedDataParallel._register_builtin_comm_hook
    if getattr(original, "_replaced_for", None) is kind:
        return

    @functools.wraps(original)
    def register_builtin_comm_hook(self: Any, comm_hook_type: BuiltinCommHookType) -> None:
        if comm_hook_type != BuiltinCommHookType.FP16_COMPRESS or not isinstance(self.process_group, kind):
            original(self, comm_hook_type)
            return
        self.register_comm_hook(self.process_group, fp16_compress_hook)
        self.logger._set_comm_hook_name(str(comm_hook_type))

    register_builtin_comm_hook._replaced_for = kind  # type: ignore[attr-defined]
    DistributedDataParallel._register_builtin_comm_hook = register_builtin_comm_hook  # type: ignore[method-assign]
