"""Python's bytearrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind
from hocket.errors import InvalidArgument


class BytearrayBuffers(BufferKind):
    name = "bytearray"
    has_dlpack = False

    def make(self, count: int, dtype: str) -> bytearray:
        return bytearray(count * np.dtype(dtype).itemsize)

    def write(self, array: Any, content: NDArray[Any]) -> None:
        array[:] = content.tobytes()

    def read(self, array: Any) -> NDArray[Any]:
        return np.frombuffer(bytes(array), np.uint8)

    def part(self, array: Any, first: int, last: int) -> memoryview:
        return memoryview(array)[first:last]

    def check_dtype(self, dtype: str) -> None:
        if dtype != "uint8":
            raise InvalidArgument(f"bytearrays hold uint8, not {dtype}: choose numpy or torch for other types")


KIND = BytearrayBuffers()
