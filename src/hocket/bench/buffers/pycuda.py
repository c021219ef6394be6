"""PyCUDA's arrays, in the memory of the GPU that is this rank's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind


class PycudaBuffers(BufferKind):
    name = "pycuda"
    has_dlpack = False
    needs = "pycuda", "hocket[pycuda]"

    def make(self, count: int, dtype: str) -> Any:
        import pycuda.autoinit  # noqa: F401 - makes the context
        from pycuda import gpuarray

        return gpuarray.zeros(count, np.dtype(dtype))

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array.set(content.astype(array.dtype))

    def read(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.get()
        return found


KIND = PycudaBuffers()
