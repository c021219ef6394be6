"""PyCUDA's arrays, in the memory of the GPU that is this rank's."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.bench.buffers.base import SetAndGot


class PycudaBuffers(SetAndGot):
    name = "pycuda"
    has_dlpack = False
    needs = "pycuda", "hocket[pycuda]"

    def make(self, count: int, dtype: str) -> Any:
        import pycuda.autoinit  # noqa: F401 - makes the context
        from pycuda import gpuarray

        return gpuarray.zeros(count, np.dtype(dtype))


KIND = PycudaBuffers()
