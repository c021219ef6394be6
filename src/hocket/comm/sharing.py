"""Methods of a communicator that make arrays in shared memory (native/shm/shared_arrays.cpp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex

from hocket import _native
from hocket.errors import InvalidState
from hocket.memory import symmetric


class SharesMemory(Protocol):
    """What these functions need of a communicator."""

    @property
    def _host(self) -> _native.Host: ...
    @property
    def _closed(self) -> bool: ...
    @property
    def _label(self) -> str: ...


def empty(comm: SharesMemory, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
    """Make an array in memory that the ranks of this host share, so that operations on it need no copies.

    Not collective. An operation uses shared arrays in place, best if the arrays of all members are shared; one shared
    array helps, too, as the source of a broadcast or the target of a gather. The memory is freed with its last
    reference, also after the communicator was finalized. A forked child shares the memory with its parent.

    Args:
        shape: an int, or a sequence of ints.
        dtype: a NumPy type or its name, for a NumPy array; or a torch type, for a tensor.

    Raises:
        InvalidArgument: the shape has a negative length, or operations do not support the type.
        InvalidType: `shape` is not a shape, or `dtype` is not a type.
        InvalidState: the communicator was finalized.
        ResourceExhausted: there is not enough memory.

    Examples:
        >>> x = comm.empty(3, "float64")
        >>> x[...] = comm.rank + 1
        >>> comm.all_reduce(x)
        >>> x
        array([3., 3., 3.])
    """
    _check_open(comm)
    return symmetric.make_array(comm._host, shape, dtype)


def zeros(comm: SharesMemory, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
    """Make a shared array of zeros; otherwise like `empty`.

    Examples:
        >>> comm.zeros((2, 2), "int32").tolist()
        [[0, 0], [0, 0]]
    """
    array = empty(comm, shape, dtype)
    array[...] = 0
    return array


def symmetric_like(comm: SharesMemory, x: Any) -> Any:
    """Move a torch module into memory that the ranks of this host share, or copy an array there.

    Args:
        x: a torch module, a tensor or a NumPy array. The parameters, gradients and buffers of a module are moved, and
            views of their memory move with them.

    Returns:
        The module itself, or a shared array with the shape, type and content of x.

    Raises:
        InvalidArgument: operations do not support the type.
        InvalidType: x is something else, or the module has a tensor that is not a strided tensor on the CPU.
        InvalidState: the communicator was finalized.
        ResourceExhausted: there is not enough memory.

    Examples:
        >>> shared = comm.symmetric_like(np.array([1.0, 2.0]))
        >>> comm.all_reduce(shared)
        >>> shared
        array([2., 4.])
    """
    _check_open(comm)
    return symmetric.symmetric_like(comm._host, x)


def symmetric_storage(comm: SharesMemory, tensors: Iterable[Any]) -> int:
    """Move torch tensors into memory that the ranks of this host share; views of their memory move with them.

    Args:
        tensors: strided tensors on the CPU.

    Returns:
        The number of bytes that were moved.

    Raises:
        InvalidType: an item is not a strided tensor on the CPU.
        InvalidState: the communicator was finalized, or this version of torch cannot exchange the memory of tensors.
        ResourceExhausted: there is not enough memory; tensors that were already moved stay in shared memory.

    Examples:
        >>> import torch
        >>> comm.symmetric_storage([torch.zeros(4), torch.zeros(2)])
        24
    """
    _check_open(comm)
    return symmetric.share_storage(comm._host, tensors)


def _check_open(comm: SharesMemory) -> None:
    if comm._closed:
        raise InvalidState(f"{comm._label} was finalized and cannot allocate shared memory any longer")
