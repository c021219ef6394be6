"""The interface of a kind of memory that holds messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument

_PAGE = 4096
DTYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip


def page_aligned(nbytes: int) -> NDArray[np.uint8]:
    """Return zeroed memory that starts at a page boundary.

    The offset of an array within its page changes times by some percent.
    """
    memory = np.empty(nbytes + _PAGE, np.uint8)
    memory.fill(0)
    first = -memory.ctypes.data % _PAGE
    return memory[first : first + nbytes]


class BufferKind(ABC):
    """Makes one-dimensional arrays of one kind, and copies their content to and from NumPy.

    Attributes:
        name: the name by which users choose it.
        has_dlpack: whether the arrays support DLPack.
        needs: the module that must be installed, and the pip requirement that installs it; None: no module.
    """

    name: ClassVar[str]
    has_dlpack: ClassVar[bool] = True
    needs: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def make(self, count: int, dtype: str) -> Any:
        """Return an array of zeros whose pages are all allocated.

        Args:
            count: number of elements.
            dtype: element type, by NumPy's name, or "bfloat16".
        """

    @abstractmethod
    def write(self, array: Any, content: NDArray[Any]) -> None:
        """Set the content of an array."""

    @abstractmethod
    def read(self, array: Any) -> NDArray[Any]:
        """Return a copy of the content of an array."""

    def part(self, array: Any, first: int, last: int) -> Any:
        """Return a view of elements `first` to `last` of an array, without `last`."""
        return array[first:last]

    def check_dtype(self, dtype: str) -> None:
        """Raise InvalidArgument if arrays of this kind do not support an element type."""
        if dtype not in DTYPES:
            raise InvalidArgument(f"there is no type {dtype!r} of {self.name} arrays; there are {', '.join(DTYPES)}")


class SetGetBuffers(BufferKind):
    """GPU arrays whose methods `set` and `get` copy the whole content, as in CuPy and PyCUDA."""

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array.set(content.astype(array.dtype))

    def read(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.get()
        return found
