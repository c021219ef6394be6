"""Arrays of the libraries that keep some on a GPU; all ranks use the first one."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


class Torch:
    def put(self, x: Numbers) -> Any:
        import torch

        return torch.from_numpy(x.copy()).cuda()

    def read(self, array: Any) -> Numbers:
        found: Numbers = array.cpu().numpy()
        return found

    def view(self, array: Any, begin: int, count: int) -> Any:
        return array.view(-1)[begin : begin + count]


class Cupy:
    def put(self, x: Numbers) -> Any:
        import cupy

        return cupy.asarray(x)

    def read(self, array: Any) -> Numbers:
        found: Numbers = array.get()
        return found

    def view(self, array: Any, begin: int, count: int) -> Any:
        return array.reshape(-1)[begin : begin + count]


class Numba:
    def put(self, x: Numbers) -> Any:
        from numba import cuda

        return cuda.to_device(np.ascontiguousarray(x))

    def read(self, array: Any) -> Numbers:
        found: Numbers = array.copy_to_host()
        return found

    def view(self, array: Any, begin: int, count: int) -> Any:
        return array.reshape(array.size)[begin : begin + count]


LIBRARIES = {"torch": Torch, "cupy": Cupy, "numba": Numba}
