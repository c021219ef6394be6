"""A kind of memory that messages are made of."""

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
    """Make zeroed memory that begins at a page: where in a page an array begins changes times by some percent."""
    memory = np.empty(nbytes + _PAGE, np.uint8)
    memory.fill(0)
    first = -memory.ctypes.data % _PAGE
    return memory[first : first + nbytes]


class BufferKind(ABC):
    """Makes one-dimensional arrays of one kind, and moves their content to and from NumPy.

    Attributes:
        name: by which it is chosen.
        has_dlpack: whether arrays can be handed over by DLPack.
        needs: modules that have to be installed, and what installs them; None: nothing.
    """

    name: ClassVar[str]
    has_dlpack: ClassVar[bool] = True
    needs: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def make(self, count: int, dtype: str) -> Any:
        """Make an array of zeros, every page of which is there.

        Args:
            count: of its elements.
            dtype: their type, by NumPy's name, or "bfloat16".
        """

    @abstractmethod
    def write(self, array: Any, content: NDArray[Any]) -> None:
        """Set an array's content."""

    @abstractmethod
    def read(self, array: Any) -> NDArray[Any]:
        """Return a copy of an array's content."""

    def part(self, array: Any, first: int, last: int) -> Any:
        """Return a view of some elements of an array."""
        return array[first:last]

    def check_dtype(self, dtype: str) -> None:
        """Raise InvalidArgument where there are no arrays of a type."""
        if dtype not in DTYPES:
            raise InvalidArgument(f"there is no type {dtype!r} of {self.name} arrays; there are {', '.join(DTYPES)}")


class SetAndGot(BufferKind):
    """Arrays of a GPU whose content is set and got whole by methods of that name, as CuPy's and PyCUDA's are."""

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array.set(content.astype(array.dtype))

    def read(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.get()
        return found
