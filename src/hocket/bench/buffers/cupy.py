"""CuPy arrays, in the memory of this rank's GPU."""

from __future__ import annotations

from typing import Any

from hocket.bench.buffers.base import SetGetBuffers


class CupyBuffers(SetGetBuffers):
    name = "cupy"
    needs = "cupy", "hocket[cupy]"

    def make(self, count: int, dtype: str) -> Any:
        import cupy

        return cupy.zeros(count, dtype)


KIND = CupyBuffers()
