"""Arrays in memory that all ranks of a host share: operations on them need no staging copies.

Every rank makes its own arrays at any time, without coordination. An operation uses the arrays in place if all members
pass one in shared memory (native/shm/shared_arrays.cpp); otherwise it stages them as usual.
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
    """Make an uninitialised array in memory that the ranks of a host share.

    Args:
        host: the ranks that share the memory.
        shape: an int, or a sequence of ints.
        dtype: a NumPy type or its name, for a NumPy array; or a torch type, for a tensor.

    Raises:
        InvalidArgument: the shape has a negative length, or operations do not support the type.
        InvalidType: the shape is not a shape, or neither NumPy nor torch has this type.
        ResourceExhausted: there is not enough memory.
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
        raise InvalidType(f"dtype must be a type of NumPy or torch, e.g. 'float32', not {dtype!r}") from None
    _check_dtype(read.name)
    memory = _allocate(host, math.prod(lengths) * read.itemsize)
    return np.frombuffer(memoryview(memory), np.uint8)[: math.prod(lengths) * read.itemsize].view(read).reshape(lengths)


def _allocate(host: _native.Host, nbytes: int) -> _native.SharedMemory:
    if nbytes >= 1 << 62:  # beyond any address
        raise ResourceExhausted(f"cannot allocate {nbytes} bytes of shared memory: larger than the address space")
    return host.allocate(nbytes)


def symmetric_like(host: _native.Host, x: Any) -> Any:
    """Move a module, or copy an array, into shared memory; see `Communicator.symmetric_like`."""
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
    """Move tensors on the CPU into shared memory, with their content; views of their memory move with them.

    Args:
        host: the ranks that share the memory.
        tensors: tensors to move; memory that several of them share is moved once.

    Returns:
        The number of bytes that were moved.

    Raises:
        InvalidType: an item is not a strided tensor on the CPU.
        InvalidState: this version of torch cannot exchange the memory of tensors.
        ResourceExhausted: there is not enough memory; tensors that were already moved stay in shared memory.
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
        raise InvalidArgument(f"operations do not support the type {name}; choose from {_SUPPORTED}")
