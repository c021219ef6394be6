"""NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind, page_aligned


class NumpyBuffers(BufferKind):
    name = "numpy"

    def make(self, count: int, dtype: str) -> NDArray[Any]:
        return page_aligned(count * np.dtype(dtype).itemsize).view(dtype)

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array[...] = content

    def read(self, array: Any) -> NDArray[Any]:
        return np.array(array)


KIND = NumpyBuffers()
