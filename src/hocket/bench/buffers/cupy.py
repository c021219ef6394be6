"""CuPy arrays, in the memory of the GPU that is this rank's."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind


class CupyBuffers(BufferKind):
    name = "cupy"
    needs = "cupy", "hocket[cupy]"

    def make(self, count: int, dtype: str) -> Any:
        import cupy

        return cupy.zeros(count, dtype)

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array.set(content.astype(array.dtype))

    def read(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.get()
        return found


KIND = CupyBuffers()
