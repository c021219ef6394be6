"""Which rank adds which part of the places, so that all ranks get equally many elements to add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.comm import Communicator

_BINS_A_RANK = 64
_PARTS = 64
"""Into which a bin is refined."""
_TOLERANCE = 32
"""A region has at most 1/32 more elements than its share, or those of a single place."""


def cut_regions(comm: Communicator, places: NDArray[np.uint32], size: int, **how: Any) -> NDArray[np.int64]:
    """Return the first place of each rank's region, and behind the last one `size`; equal on all ranks.

    The cuts are quantiles of all ranks' places together. A histogram of the places gives them within a bin; bins with
    too many places are refined, down to a single place if need be, so that no distribution gives a region much more
    than its share. All ranks call it.

    Args:
        comm: a communicator of all ranks.
        places: this rank's places, ascending.
        size: number of elements of the array.
        how: timeout and backend, as for `Communicator.all_reduce`.

    Examples:
        >>> import numpy as np
        >>> from hocket.collectives.sparse.regions import cut_regions
        >>> places = np.arange(comm.rank, 100, comm.size, dtype=np.uint32)  # together: all places
        >>> bool(abs(cut_regions(comm, places, 100)[1] - 100 // comm.size) <= 2)
        True
    """
    num_ranks = comm.size
    edges = np.unique(np.linspace(0, size, min(size, _BINS_A_RANK * num_ranks) + 1).astype(np.int64))
    below = np.zeros(len(edges), np.int64)  # elements of all ranks before each edge
    fresh = np.arange(len(edges) - 1)  # bins whose elements are not counted yet
    counts = np.zeros(len(edges) - 1, np.int64)
    while True:
        at = np.searchsorted(places, edges)
        of_bins = (at[1:] - at[:-1])[fresh]
        comm.all_reduce(of_bins, **how)
        counts[fresh] = of_bins
        below = np.concatenate(([0], np.cumsum(counts)))
        total = int(below[-1])
        targets = total * np.arange(1, num_ranks) / num_ranks
        holding = np.unique(np.clip(np.searchsorted(below, targets, side="right") - 1, 0, len(counts) - 1))
        widths = edges[1:] - edges[:-1]
        coarse = holding[(counts[holding] * _TOLERANCE * num_ranks > total) & (widths[holding] > 1)]
        if not len(coarse):
            break
        edges, counts, fresh = _refined(edges, counts, coarse)
    nearest = np.searchsorted(below, targets)
    nearest = np.clip(nearest, 1, len(below) - 1)
    nearest -= targets - below[nearest - 1] < below[nearest] - targets
    return np.concatenate(([0], np.maximum.accumulate(edges[nearest]), [size]))


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
        parts = np.unique(np.linspace(edges[bin_], edges[bin_ + 1], min(width, _PARTS) + 1).astype(np.int64))[1:]
        new_edges.append(parts)
        new_counts.append(np.zeros(len(parts), np.int64))
        fresh.append(np.arange(num_bins, num_bins + len(parts)))
        num_bins += len(parts)
        begin = bin_ + 1
    new_edges.append(edges[begin + 1 :])
    new_counts.append(counts[begin:])
    return np.concatenate(new_edges), np.concatenate(new_counts), np.concatenate(fresh)
