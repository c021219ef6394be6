"""The expected data flow of each collective, in NumPy alone: lengths of its arrays, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Arrays = Sequence[NDArray[np.generic]]
Fold = Callable[[Arrays], NDArray[np.generic]]


@dataclass(frozen=True)
class Sizes:
    """The numbers of elements in one collective.

    Args:
        count: number of elements of a message.
        counts: number of elements of each rank's part, for operations that divide arrays into parts.
    """

    count: int
    counts: tuple[int, ...]

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return the bounds of a rank's part: the index of its first element, and the index after its last one."""
        return list(pairwise(accumulate(self.counts, initial=0)))[rank]

    def part(self, array: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
        """Return a rank's part of an array."""
        first, last = self.bounds(rank)
        return array[first:last]


@dataclass(frozen=True)
class Flow:
    """The data flow of one collective; x is the input array and out is the output array.

    Args:
        x_count: function that returns the number of elements of x on a rank; None: the rank has no x.
        out_count: function that returns the number of elements of out on a rank; None: the rank has no out. None
            instead of a function: the result replaces the content of x.
        result: function that returns the expected result on a rank, given the x of all ranks; None: no result is
            defined on this rank.
    """

    x_count: Callable[[Sizes, int], int | None]
    out_count: Callable[[Sizes, int], int | None] | None
    result: Callable[[Sizes, Arrays, int, Fold], NDArray[np.generic] | None]


def _message_count(sizes: Sizes, rank: int) -> int:
    return sizes.count


def _total_count(sizes: Sizes, rank: int) -> int:
    return sum(sizes.counts)


def _total_count_on_root(sizes: Sizes, rank: int) -> int | None:
    return None if rank else sum(sizes.counts)


def _part_count(sizes: Sizes, rank: int) -> int:
    return sizes.counts[rank]


FLOWS: Mapping[str, Flow] = {
    "barrier": Flow(lambda sizes, rank: None, None, lambda sizes, xs, rank, fold: None),
    "broadcast": Flow(_message_count, None, lambda sizes, xs, rank, fold: xs[0]),
    "reduce": Flow(_message_count, None, lambda sizes, xs, rank, fold: None if rank else fold(xs)),
    "scan": Flow(_message_count, None, lambda sizes, xs, rank, fold: fold(xs[: rank + 1])),
    "all_reduce": Flow(_message_count, None, lambda sizes, xs, rank, fold: fold(xs)),
    "gather": Flow(
        _part_count, _total_count_on_root, lambda sizes, xs, rank, fold: None if rank else np.concatenate(xs)
    ),
    "scatter": Flow(_total_count_on_root, _part_count, lambda sizes, xs, rank, fold: sizes.part(xs[0], rank)),
    "all_gather": Flow(_part_count, _total_count, lambda sizes, xs, rank, fold: np.concatenate(xs)),
    "all_to_all": Flow(
        _total_count,
        lambda sizes, rank: len(sizes.counts) * sizes.counts[rank],
        lambda sizes, xs, rank, fold: np.concatenate([sizes.part(x, rank) for x in xs]),
    ),
    "reduce_scatter": Flow(_message_count, _part_count, lambda sizes, xs, rank, fold: sizes.part(fold(xs), rank)),
}
