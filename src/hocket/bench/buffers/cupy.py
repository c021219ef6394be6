"""CuPy arrays, in the memory of the GPU that is this rank's."""

from __future__ import annotations

from typing import Any

from hocket.bench.buffers.base import SetAndGot


class CupyBuffers(SetAndGot):
    name = "cupy"
    needs = "cupy", "hocket[cupy]"

    def make(self, count: int, dtype: str) -> Any:
        import cupy

        return cupy.zeros(count, dtype)


KIND = CupyBuffers()
