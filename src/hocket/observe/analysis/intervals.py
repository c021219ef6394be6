"""Sets of time intervals: their union, and how much of a time they cover."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class IntervalSet:
    """The union of intervals of time.

    Args:
        begins, ends: seconds, one pair for each interval, in any order. Pairs with NaN or without a length are left
            out.

    Attributes:
        begins, ends: of the intervals of the union, which do not touch, in the order of time.

    Examples:
        >>> from hocket.observe.analysis.intervals import IntervalSet
        >>> union = IntervalSet([0.0, 1.0, 5.0], [2.0, 3.0, 6.0])
        >>> union.seconds, union.covered(2.0, 5.5).tolist()
        (4.0, 1.5)
    """

    def __init__(self, begins: ArrayLike, ends: ArrayLike) -> None:
        import numpy as np

        first, last = np.asarray(begins, np.float64), np.asarray(ends, np.float64)
        is_real = last > first
        first, last = first[is_real], last[is_real]
        order = np.argsort(first, kind="stable")
        first, last = first[order], np.maximum.accumulate(last[order]) if len(order) else last
        is_new = np.ones(len(first), bool)
        is_new[1:] = first[1:] > last[:-1]
        starts = np.flatnonzero(is_new)
        self.begins: NDArray[np.float64] = first[starts]
        self.ends: NDArray[np.float64] = last[np.append(starts[1:], len(first)) - 1] if len(starts) else last
        self._before = np.concatenate([[0.0], np.cumsum(self.ends - self.begins)])

    @property
    def seconds(self) -> float:
        """Length of the union."""
        return float(self._before[-1])

    def covered(self, begins: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
        """Return how many seconds of each given interval are in the union.

        Args:
            begins, ends: of the intervals; of one shape.
        """
        import numpy as np

        return np.maximum(self._until(np.asarray(ends)) - self._until(np.asarray(begins)), 0.0)

    def overlap(self, other: IntervalSet) -> float:
        """Return the length of the intersection with another union."""
        return float(self.covered(other.begins, other.ends).sum())

    def _until(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of the union before each time."""
        import numpy as np

        if not len(self.begins):
            return np.zeros(np.shape(times))
        place = np.searchsorted(self.begins, times, side="right")
        inside = np.clip(times - self.begins[np.maximum(place - 1, 0)], 0.0, None)
        length = (self.ends - self.begins)[np.maximum(place - 1, 0)]
        return np.where(place > 0, self._before[np.maximum(place - 1, 0)] + np.minimum(inside, length), 0.0)
