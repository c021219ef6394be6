"""Numba device arrays, in the memory of this rank's GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind


class NumbaBuffers(BufferKind):
    name = "numba"
    has_dlpack = False
    needs = "numba", "hocket[numba]"

    def make(self, count: int, dtype: str) -> Any:
        from numba import cuda

        return cuda.to_device(np.zeros(count, dtype))

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array.copy_to_device(content.astype(array.dtype))

    def read(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.copy_to_host()
        return found


KIND = NumbaBuffers()
