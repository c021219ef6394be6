"""Which rank adds which part of the places, so that all ranks get equally many elements to add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_BINS_A_RANK = 64
_PARTS = 64
"""Into which a bin is refined."""
MOST_TOLD = 4
"""Up to so many ranks tell each other their counts, not only the sums: then they know the lengths of messages."""
_TOLERANCE = 32
"""A region has at most 1/32 more elements than its share, or those of a single place."""


@dataclass(frozen=True)
class BinCounts:
    """Numbers of places in bins.

    Args:
        total: of all ranks together, for each bin.
        of_ranks: a row for each rank; None: not known.
    """

    total: NDArray[np.int64]
    of_ranks: NDArray[np.int64] | None


def first_edges(size: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the edges of the bins that are counted first.

    Examples:
        >>> from hocket.collectives.sparse.regions import first_edges
        >>> len(first_edges(1000, 4)), first_edges(3, 4)
        (257, array([0, 1, 2, 3]))
    """
    num_bins = min(size, _BINS_A_RANK * num_ranks)
    return size * np.arange(num_bins + 1, dtype=np.int64) // num_bins


def count_first(
    comm: Communicator, places: NDArray[np.uint32], size: int, words: NDArray[np.int64], **how: Any
) -> Generator[Pending, None, tuple[NDArray[np.int64], BinCounts]]:
    """Count the places of all ranks in the first bins; called by all ranks.

    Its one operation has the same size for every `size`, so that ranks that disagree about it find out together.

    Args:
        comm: a communicator of all ranks.
        places: this rank's places, ascending.
        size: number of elements of the array.
        words: are added up in the same operation.
        how: timeout and backend, as for `Communicator.all_reduce`.

    Returns:
        The sums of the words, and the counts.
    """
    edges = first_edges(size, comm.size)
    both = np.zeros(len(words) + _BINS_A_RANK * comm.size, np.int64)
    both[: len(words)] = words
    at = np.searchsorted(places, edges)
    bins = slice(len(words), len(words) + len(at) - 1)
    both[bins] = at[1:] - at[:-1]
    if comm.size > MOST_TOLD:
        yield comm.all_reduce(both, async_op=True, **how)
        return both[: len(words)], BinCounts(both[bins], None)
    rows = np.empty((comm.size, len(both)), np.int64)
    yield comm.all_gather(rows, both, async_op=True, **how)
    sums = rows.sum(0)
    return sums[: len(words)], BinCounts(sums[bins], rows[:, bins])


def cut_regions(
    comm: Communicator, places: NDArray[np.uint32], size: int, counted: BinCounts, **how: Any
) -> Generator[Pending, None, tuple[NDArray[np.int64], NDArray[np.int64] | None]]:
    """Return the first place of each rank's region, and behind the last one `size`; equal on all ranks. And, where that
    is known, how many places each rank (a row) has in each region.

    The cuts are quantiles of all ranks' places together. A histogram of the places gives them within a bin; bins with
    too many places are refined, down to a single place if need be, so that no distribution gives a region much more
    than its share. All ranks call it.

    Args:
        comm: a communicator of all ranks.
        places: this rank's places, ascending.
        size: number of elements of the array.
        counted: in the first bins, see `count_first`.
        how: timeout and backend, as for `Communicator.all_reduce`.
    """
    num_ranks = comm.size
    edges, counts, of_ranks = first_edges(size, num_ranks), counted.total, counted.of_ranks
    while True:
        below = np.concatenate(([0], np.cumsum(counts)))  # elements of all ranks before each edge
        total = int(below[-1])
        targets = total * np.arange(1, num_ranks) / num_ranks
        holding = np.unique(np.clip(np.searchsorted(below, targets, side="right") - 1, 0, len(counts) - 1))
        widths = edges[1:] - edges[:-1]
        coarse = holding[(counts[holding] * _TOLERANCE * num_ranks > total) & (widths[holding] > 1)]
        if not len(coarse):
            break
        edges, counts, fresh = _refined(edges, counts, coarse)
        of_ranks = None
        at = np.searchsorted(places, edges)
        of_bins = (at[1:] - at[:-1])[fresh]
        yield comm.all_reduce(of_bins, async_op=True, **how)
        counts[fresh] = of_bins
    nearest = np.searchsorted(below, targets)
    nearest = np.clip(nearest, 1, len(below) - 1)
    nearest -= targets - below[nearest - 1] < below[nearest] - targets
    at = np.concatenate(([0], np.maximum.accumulate(nearest), [len(edges) - 1]))
    if of_ranks is not None:
        before = np.concatenate((np.zeros((num_ranks, 1), np.int64), np.cumsum(of_ranks, 1)), 1)
        of_ranks = np.diff(before[:, at], axis=1)
    return edges[at], of_ranks


def _refined(
    edges: NDArray[np.int64], counts: NDArray[np.int64], coarse: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut bins into parts; return all edges, the counts (0 for the new bins), and the places of the new bins."""
    new_edges, new_counts, fresh = [edges[:1]], [], []
    begin, num_bins = 0, 0
    for bin_ in coarse:
        new_edges.append(edges[begin + 1 : bin_ + 1])
        new_counts.append(counts[begin:bin_])
        num_bins += bin_ - begin
        width = int(edges[bin_ + 1] - edges[bin_])
        num_parts = min(width, _PARTS)
        parts = edges[bin_] + width * np.arange(1, num_parts + 1, dtype=np.int64) // num_parts
        new_edges.append(parts)
        new_counts.append(np.zeros(num_parts, np.int64))
        fresh.append(np.arange(num_bins, num_bins + num_parts))
        num_bins += num_parts
        begin = bin_ + 1
    new_edges.append(edges[begin + 1 :])
    new_counts.append(counts[begin:])
    return np.concatenate(new_edges), np.concatenate(new_counts), np.concatenate(fresh)
