"""Arrays in memory that all ranks of a host share: operations on them skip the copies that others need.

Every rank makes its own arrays, and when it likes: nothing has to be agreed. An operation uses arrays where they are
if all members have given one in shared memory (native/shm/shared_arrays.cpp), and stages the others as ever.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from hocket import _native
from hocket.errors import InvalidArgument, InvalidState, InvalidType, ResourceExhausted

_SUPPORTED = ", ".join(_native.DTYPE_NAMES)


def make_array(host: _native.Host, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any) -> Any:
    """Make an array in memory that the ranks of a host share; what it holds is arbitrary.

    Args:
        host: whose.
        shape: an int, or a sequence of ints.
        dtype: what NumPy understands for a NumPy array, or one of torch's types for a tensor.

    Raises:
        InvalidArgument: the shape is none, or operations know no such type.
        InvalidType: neither NumPy nor torch has such a type.
        ResourceExhausted: there is not so much memory.
    """
    lengths = _read_shape(shape)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        _check_dtype(str(dtype).removeprefix("torch."))
        count = math.prod(lengths)
        if count == 0:
            return torch.empty(lengths, dtype=dtype)
        return torch.frombuffer(_allocate(host, count * dtype.itemsize), dtype=dtype).reshape(lengths)
    import numpy as np

    try:
        read = np.dtype(dtype)
    except TypeError:
        raise InvalidType(f"dtype must be a type of NumPy or torch, as 'float32', not {dtype!r}") from None
    _check_dtype(read.name)
    memory = _allocate(host, math.prod(lengths) * read.itemsize)
    return np.frombuffer(memoryview(memory), np.uint8)[: math.prod(lengths) * read.itemsize].view(read).reshape(lengths)


def _allocate(host: _native.Host, nbytes: int) -> _native.SharedMemory:
    if nbytes >= 1 << 62:  # beyond any address
        raise ResourceExhausted(f"no memory that ranks share has {nbytes} bytes")
    return host.allocate(nbytes)


def symmetric_like(host: _native.Host, x: Any) -> Any:
    """Do what `Communicator.symmetric_like` says."""
    if hasattr(x, "parameters") and hasattr(x, "buffers"):
        parameters = list(x.parameters())
        gradients = [each.grad for each in parameters if each.grad is not None]
        share_storage(host, [*(each.data for each in parameters), *gradients, *x.buffers()])
        return x
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise InvalidType(f"symmetric_like takes a torch module, a tensor or a NumPy array, not {type(x).__name__}")
    shared = make_array(host, x.shape, x.dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        shared.copy_(x.detach())
    else:
        shared[...] = x
    return shared


def share_storage(host: _native.Host, tensors: Iterable[Any]) -> int:
    """Move tensors on the CPU into shared memory, with their content; all views of their memory move along.

    Args:
        host: whose memory.
        tensors: to move; those that share memory are moved once.

    Returns:
        The bytes that were moved.

    Raises:
        InvalidType: one is no strided tensor on the CPU.
        InvalidState: this torch cannot do that.
        ResourceExhausted: there is not so much memory; what was moved before stays where it is now.
    """
    torch = sys.modules["torch"]
    storages: dict[int, Any] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise InvalidType(
                f"only strided tensors on the CPU can be shared, not one of {tensor.layout} on {tensor.device}"
            )
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage
    if not all(hasattr(each, "_swap_data_ptr_") for each in storages.values()):
        raise InvalidState(f"torch {torch.__version__} cannot exchange the memory of tensors; 2.13 can")
    for storage in storages.values():
        shared = torch.frombuffer(host.allocate(storage.nbytes()), dtype=torch.uint8).untyped_storage()
        shared.copy_(storage)
        storage._swap_data_ptr_(shared)
    return sum(each.nbytes() for each in storages.values())


def _read_shape(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        lengths = tuple(operator.index(each) for each in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise InvalidType(f"shape must be an int or a sequence of ints, not {shape!r}") from None
    if any(each < 0 for each in lengths):
        raise InvalidArgument(f"shape {lengths} has a negative length")
    return lengths


def _check_dtype(name: str) -> None:
    if name not in _native.DTYPE_NAMES:
        raise InvalidArgument(f"operations know no type {name}; there are {_SUPPORTED}")
