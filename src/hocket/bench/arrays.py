"""The arrays of one point on one rank: its kind of memory, shared or not, in the form that its API takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.registry import Setting


class Capsule:
    """An array that offers only the DLPack interface."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Arrays:
    """Makes and fills the arrays of a benchmark.

    Benchmarks of one process share their arrays: the place in memory changes times by some percent, which must not
    count as a difference between libraries.

    Args:
        setting: the setting of the benchmark.
    """

    def __init__(self, setting: Setting) -> None:
        self._kind, self._point, self._driver = setting.kind, setting.point, setting.driver
        self._shared = setting.arrays

    def make(self, count: int, role: str) -> Any:
        """Return an array of zeros; each role has its own array."""
        point = self._point
        owner = self._driver.name.partition("!")[0] if point.symmetric else self._kind.name
        key = role, count, point.dtype, owner
        if key not in self._shared:
            make = self._driver.shared if point.symmetric else self._kind.make
            self._shared[key] = make(count, point.dtype)
        array = self._shared[key]
        return Capsule(array) if point.api == "dlpack" else array

    def part(self, array: Any, first: int, last: int) -> Any:
        """Return a view of elements `first` to `last` of an array."""
        view = self._kind.part(_plain(array), first, last)
        return Capsule(view) if self._point.api == "dlpack" else view

    def of(self, content: NDArray[Any]) -> Any:
        """Return an array with this content, for the APIs that take objects."""
        array = self._kind.make(content.size, self._point.dtype)
        self._kind.write(array, content)
        return array

    def write(self, array: Any, content: NDArray[Any]) -> None:
        """Set the content of an array."""
        self._kind.write(_plain(array), content)

    def clear(self, array: Any) -> None:
        """Set an array to zeros."""
        plain = _plain(array)
        self._kind.write(plain, np.zeros_like(self._kind.read(plain)))

    def read(self, array: Any) -> NDArray[Any]:
        """Return a copy of the content of an array."""
        return self._kind.read(_plain(array))


def _plain(array: Any) -> Any:
    return array.array if isinstance(array, Capsule) else array
