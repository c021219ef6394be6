"""Memory of devices for what comes from another process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hocket.memory.pointer_cache import chosen_driver

Allocator = Callable[[int], Any]
"""Returns an array of so many bytes, with ``__cuda_array_interface__``."""


def find_allocator() -> Allocator | None:
    """Return what allocates device memory for arrays of this process; None: no such library was imported.

    Other libraries could find the device's memory taken by the pool of the one that the program uses. So it is that
    one: RAPIDS' memory manager, CuPy or Numba, whichever was imported first in this list.
    """
    driver = chosen_driver()
    if driver is not None:
        own: Allocator | None = getattr(driver, "allocate_array", None)
        return own
    for name, allocator in (("rmm", _of_rmm), ("cupy", _of_cupy), ("numba.cuda", _of_numba)):
        if name in sys.modules:
            return allocator
    return None


def _of_rmm(nbytes: int) -> Any:
    return sys.modules["rmm"].DeviceBuffer(size=nbytes)


def _of_cupy(nbytes: int) -> Any:
    return sys.modules["cupy"].empty(nbytes, "u1")


def _of_numba(nbytes: int) -> Any:
    return sys.modules["numba.cuda"].device_array((nbytes,), "u1")
