"""Checks of operand types that kernels make and fake tensors do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_OF_ONE_TYPE = {_aten.addmm, _aten.addmv, _aten.baddbmm, _aten.bmm, _aten.dot, _aten.mm, _aten.mv}
_INDEX_TYPES = (torch.int64, torch.int32)


class OperandTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, raises TypeError for calls that work with fake tensors and fail with real ones."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operation = func.overloadpacket
        if operation in _OF_ONE_TYPE:
            dtypes = list(dict.fromkeys(each.dtype for each in args if isinstance(each, torch.Tensor)))
            if len(dtypes) > 1:
                first, second = (str(each).removeprefix("torch.") for each in dtypes[:2])
                raise TypeError(
                    f"{operation.__name__} of {first} and {second}: convert the data or the model to one type"
                )
        if operation is _aten.embedding and args[1].dtype not in _INDEX_TYPES:
            dtype = str(args[1].dtype).removeprefix("torch.")
            raise TypeError(f"the indices of an embedding must be int64 or int32, not {dtype}")
        return func(*args, **(kwargs or {}))
