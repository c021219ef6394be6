"""PyCUDA arrays, in the memory of this rank's GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.bench.buffers.base import SetGetBuffers


class PycudaBuffers(SetGetBuffers):
    name = "pycuda"
    has_dlpack = False
    needs = "pycuda", "hocket[pycuda]"

    def make(self, count: int, dtype: str) -> Any:
        import pycuda.autoinit  # noqa: F401 - creates the CUDA context
        from pycuda import gpuarray

        return gpuarray.zeros(count, np.dtype(dtype))


KIND = PycudaBuffers()
