"""Lanes of a timeline: slices of one lane never overlap, unless one lies inside the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def divide_into_lanes(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the lane of each slice, from 0; as few as a greedy choice needs.

    Args:
        begins, ends: seconds; `begins` in ascending order.

    Examples:
        >>> import numpy as np
        >>> from hocket.observe.formats.lanes import divide_into_lanes
        >>> divide_into_lanes(np.array([0.0, 1.0, 2.0]), np.array([3.0, 2.0, 4.0])).tolist()
        [0, 0, 1]
    """
    import numpy as np

    lanes = np.zeros(len(begins), np.int64)
    open_ends: list[list[float]] = []  # of each lane, ends of the slices that are open, the outermost first
    for place, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        for number, stack in enumerate(open_ends):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                lanes[place] = number
                break
        else:
            lanes[place] = len(open_ends)
            open_ends.append([end])
    return lanes
