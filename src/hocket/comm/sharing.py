"""Methods of a communicator that make arrays on which operations skip copies (native/shm/shared_arrays.cpp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex

from hocket import _native
from hocket.errors import InvalidState
from hocket.memory import symmetric


class SharesMemory(Protocol):
    """What is needed of a communicator."""

    @property
    def _host(self) -> _native.Host: ...
    @property
    def _closed(self) -> bool: ...
    @property
    def _label(self) -> str: ...


def empty(comm: SharesMemory, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
    """Make an array in memory that the ranks of this host share, so that operations on it skip copies.

    Not collective. Operations use arrays where they are if those of all members are shared, or as far as they are:
    a broadcast from a shared array, a gather into one. The memory is given back with the last reference to it,
    also after the communicator was finalized. A forked child shares it with its parent; both see what one writes.

    Args:
        shape: an int, or a sequence of ints.
        dtype: what NumPy understands for a NumPy array, or one of torch's types for a tensor.

    Raises:
        InvalidArgument: the shape has a negative length, or operations know no such type.
        InvalidType: `shape` is not a shape, or `dtype` is not a type.
        InvalidState: the communicator was finalized.
        ResourceExhausted: there is not so much memory.
    """
    _check_open(comm)
    return symmetric.make_array(comm._host, shape, dtype)


def zeros(comm: SharesMemory, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
    """Make an array of zeros, otherwise as `empty`."""
    array = empty(comm, shape, dtype)
    array[...] = 0
    return array


def symmetric_like(comm: SharesMemory, x: Any) -> Any:
    """Move a torch module into memory that the ranks of this host share, or copy an array there.

    Args:
        x: a module, whose parameters, their gradients and buffers are moved, views of their memory with them; or a
            tensor or NumPy array.

    Returns:
        The module itself, or a shared array with the shape, type and content of x.

    Raises:
        InvalidArgument: operations know no such type.
        InvalidType: it is neither, or has tensors that are not strided ones on the CPU.
        InvalidState: the communicator was finalized.
        ResourceExhausted: there is not so much memory.
    """
    _check_open(comm)
    return symmetric.symmetric_like(comm._host, x)


def symmetric_storage(comm: SharesMemory, tensors: Iterable[Any]) -> int:
    """Move torch tensors into memory that the ranks of this host share, and all views of their memory with them.

    Args:
        tensors: strided ones on the CPU.

    Returns:
        The bytes that were moved.

    Raises:
        InvalidType: an item is not a strided tensor on the CPU.
        InvalidState: the communicator was finalized, or this torch cannot exchange the memory of tensors.
        ResourceExhausted: there is not so much memory; what was moved before stays where it is now.
    """
    _check_open(comm)
    return symmetric.share_storage(comm._host, tensors)


def _check_open(comm: SharesMemory) -> None:
    if comm._closed:
        raise InvalidState(f"{comm._label} was finalized; it has no memory to share any more")
