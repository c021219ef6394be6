"""The arrays of one point on one rank: of its kind of memory, shared or not, handed over as its API says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.registry import Setting


class Capsule:
    """An array that shows nothing of itself but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Arrays:
    """Makes and fills what a benchmark hands over.

    Benchmarks of one process share their arrays: where those lie in memory makes a difference of some percent, which
    is not one between libraries.

    Args:
        setting: of the benchmark.
    """

    def __init__(self, setting: Setting) -> None:
        self._kind, self._point, self._driver = setting.kind, setting.point, setting.driver
        self._shared = setting.arrays

    def make(self, count: int, role: str) -> Any:
        """Return an array of zeros; in another role it is another one."""
        point = self._point
        if point.symmetric:
            key = role, count, point.dtype, self._driver.name.partition("!")[0]
        else:
            key = role, count, point.dtype, self._kind.name
        if key not in self._shared:
            make = self._driver.shared if point.symmetric else self._kind.make
            self._shared[key] = make(count, point.dtype)
        array = self._shared[key]
        return Capsule(array) if point.api == "dlpack" else array

    def part(self, array: Any, first: int, last: int) -> Any:
        """Return a view of some elements of an array that was made."""
        view = self._kind.part(_plain(array), first, last)
        return Capsule(view) if self._point.api == "dlpack" else view

    def of(self, content: NDArray[Any]) -> Any:
        """Make an array of a content, for the APIs that take objects."""
        array = self._kind.make(content.size, self._point.dtype)
        self._kind.write(array, content)
        return array

    def write(self, array: Any, content: NDArray[Any]) -> None:
        """Set the content."""
        self._kind.write(_plain(array), content)

    def clear(self, array: Any) -> None:
        """Set it to zeros."""
        plain = _plain(array)
        self._kind.write(plain, np.zeros_like(self._kind.read(plain)))

    def read(self, array: Any) -> NDArray[Any]:
        """Return a copy of the content."""
        return self._kind.read(_plain(array))


def _plain(array: Any) -> Any:
    return array.array if isinstance(array, Capsule) else array
