"""Detection of the first access to a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


@contextmanager
def watching(tensors: Iterable[torch.Tensor], call: Callable[[], None]) -> Iterator[None]:
    """Within the context, call a function once, before this thread's first torch call with one of these tensors or a
    view of one. The torch call then uses the values that the function has written."""
    storages = {_storage(each) for each in tensors} - {0}
    if not storages:
        yield
        return
    with _Watching(storages, call):
        yield


class _Watching(TorchFunctionMode):
    def __init__(self, storages: set[int], call: Callable[[], None]) -> None:
        super().__init__()
        self._storages, self._call = storages, call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._storages and any(_storage(each) in self._storages for each in pytree.tree_leaves((args, kwargs))):
            self._storages = set()
            self._call()
        return func(*args, **(kwargs or {}))


def _storage(value: Any) -> int:
    """Return the address of a tensor's memory; 0 for other values."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0
