"""Arrays in memory that the ranks of a host share, made by a communicator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from hocket import _native
from hocket.comm.choosing import ChoosingOperations
from hocket.errors import InvalidState
from hocket.memory.symmetric import make_array, share_storage, symmetric_like


class SharingOperations(ChoosingOperations):
    """What makes arrays on which operations skip copies (native/shm/shared_arrays.cpp)."""

    _host: _native.Host

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
        """Make an array in memory that the ranks of this host share, so that operations on it skip copies.

        Not collective. Operations use arrays where they are if those of all members are shared, or as far as they are:
        a broadcast from a shared array, a gather into one. The memory is given back with the last reference to it,
        also after the communicator was finalized. A forked child shares it with its parent; both see what one writes.

        Args:
            shape: an int, or a sequence of ints.
            dtype: what NumPy understands for a NumPy array, or one of torch's types for a tensor.

        Raises:
            InvalidArgument: the shape has a negative length, or operations know no such type.
            InvalidType: shape or dtype is none.
            InvalidState: the communicator was finalized.
            ResourceExhausted: there is not so much memory.
        """
        self._check_open()
        return make_array(self._host, shape, dtype)

    def zeros(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32") -> Any:
        """Make an array of zeros, otherwise as `empty`."""
        array = self.empty(shape, dtype)
        array[...] = 0
        return array

    def symmetric_like(self, x: Any) -> Any:
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
        self._check_open()
        return symmetric_like(self._host, x)

    def symmetric_storage(self, tensors: Iterable[Any]) -> int:
        """Move torch tensors into memory that the ranks of this host share, and all views of their memory with them.

        Args:
            tensors: strided ones on the CPU.

        Returns:
            The bytes that were moved.

        Raises:
            InvalidType: one is none.
            InvalidState: the communicator was finalized, or this torch cannot exchange the memory of tensors.
            ResourceExhausted: there is not so much memory; what was moved before stays where it is now.
        """
        self._check_open()
        return share_storage(self._host, tensors)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidState(f"{self._label} was finalized; it has no memory to share any more")
