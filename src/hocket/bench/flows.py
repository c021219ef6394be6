"""What each collective takes and gives, in NumPy alone: how long its arrays are, and what must stand in them."""

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
    """Of one collective between some ranks.

    Args:
        count: elements of a message.
        counts: elements by rank, of operations that divide arrays into parts.
    """

    count: int
    counts: tuple[int, ...]

    def bounds(self, rank: int) -> tuple[int, int]:
        """Where the part of a rank begins and ends."""
        return list(pairwise(accumulate(self.counts, initial=0)))[rank]

    def part(self, array: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
        """The part of a rank."""
        first, last = self.bounds(rank)
        return array[first:last]


@dataclass(frozen=True)
class Flow:
    """What goes where.

    Args:
        given: elements of x, on a rank; None: it has no x.
        gets: elements of out, on a rank, None where it has none; None for all: results stand in x.
        result: what stands there afterwards, of the x of all ranks; None: nothing that counts.
    """

    given: Callable[[Sizes, int], int | None]
    gets: Callable[[Sizes, int], int | None] | None
    result: Callable[[Sizes, Arrays, int, Fold], NDArray[np.generic] | None]


def _message(sizes: Sizes, rank: int) -> int:
    return sizes.count


def _all(sizes: Sizes, rank: int) -> int:
    return sum(sizes.counts)


def _all_on_root(sizes: Sizes, rank: int) -> int | None:
    return None if rank else sum(sizes.counts)


def _own(sizes: Sizes, rank: int) -> int:
    return sizes.counts[rank]


FLOWS: Mapping[str, Flow] = {
    "barrier": Flow(lambda sizes, rank: None, None, lambda sizes, xs, rank, fold: None),
    "broadcast": Flow(_message, None, lambda sizes, xs, rank, fold: xs[0]),
    "reduce": Flow(_message, None, lambda sizes, xs, rank, fold: None if rank else fold(xs)),
    "scan": Flow(_message, None, lambda sizes, xs, rank, fold: fold(xs[: rank + 1])),
    "all_reduce": Flow(_message, None, lambda sizes, xs, rank, fold: fold(xs)),
    "gather": Flow(_own, _all_on_root, lambda sizes, xs, rank, fold: None if rank else np.concatenate(xs)),
    "scatter": Flow(_all_on_root, _own, lambda sizes, xs, rank, fold: sizes.part(xs[0], rank)),
    "all_gather": Flow(_own, _all, lambda sizes, xs, rank, fold: np.concatenate(xs)),
    "all_to_all": Flow(
        _all,
        lambda sizes, rank: len(sizes.counts) * sizes.counts[rank],
        lambda sizes, xs, rank, fold: np.concatenate([sizes.part(x, rank) for x in xs]),
    ),
    "reduce_scatter": Flow(_message, _own, lambda sizes, xs, rank, fold: sizes.part(fold(xs), rank)),
}
