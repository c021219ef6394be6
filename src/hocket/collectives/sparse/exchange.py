"""The sparse sum: at most 4k words a rank in every step, whatever the arrays hold.

It has the two phases of Ok-Topk (Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP
2022, arXiv 2201.07598). Each rank sends its k largest elements to the ranks whose regions they lie in, which add them;
then the k largest sums go to all ranks. Unlike there, all thresholds and regions are exact in every step, so the volume
is bounded in every step and not on average: 2k words in each phase, since a region has at most its share of the
elements, and each of the k sums passes each rank once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.collectives.sparse.regions import cut_regions
from hocket.collectives.sparse.threshold import magnitude_bits, threshold_over_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.comm import Communicator


@dataclass(frozen=True)
class SparseSum:
    """The largest elements of a sum over ranks, equal on all ranks.

    Args:
        places: of the elements, ascending; uint32.
        values: the sums; float32.
    """

    places: NDArray[np.uint32]
    values: NDArray[np.float32]


def exchange(
    comm: Communicator, places: NDArray[np.uint32], values: NDArray[np.float32], size: int, k: int, **how: Any
) -> SparseSum:
    """Return the k largest sums of the elements that the ranks give; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        places, values: this rank's elements, ascending by place.
        size: number of elements of the whole array.
        k: most elements of the result; equal on all ranks.
        how: timeout and backend, as for `Communicator.all_reduce`.
    """
    cuts = cut_regions(comm, places, size, **how)
    sums = _add(comm, places, values, cuts, **how)
    kept = _largest(comm, *sums, k, **how)
    return _gather(comm, *kept, **how)


def _add(
    comm: Communicator, places: NDArray[np.uint32], values: NDArray[np.float32], cuts: NDArray[np.int64], **how: Any
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Send elements to the ranks of their regions; return the sums of this rank's region, added in the order of
    ranks."""
    at = np.searchsorted(places, cuts)
    in_counts = 2 * (at[1:] - at[:-1])
    out_counts = np.empty_like(in_counts)
    comm.all_to_all(out_counts, in_counts, **how)
    out = np.empty(int(out_counts.sum()), np.uint32)
    comm.all_to_allv(out, _packed(places, values, at), out_counts.tolist(), in_counts.tolist(), **how)
    first = int(cuts[comm.rank])
    sums = np.zeros(int(cuts[comm.rank + 1]) - first, np.float32)
    is_there = np.zeros(len(sums), bool)
    end = 0
    for count in out_counts.tolist():
        begin, middle, end = end, end + count // 2, end + count
        here = out[begin:middle] - np.uint32(first)
        sums[here] += out[middle:end].view(np.float32)
        is_there[here] = True
    found = np.flatnonzero(is_there & (sums != 0))
    return (found + first).astype(np.uint32), sums[found]


def _packed(places: NDArray[np.uint32], values: NDArray[np.float32], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return for each part between two of `at` its places, then its values."""
    words = np.empty(2 * len(places), np.uint32)
    bits = values.view(np.uint32)
    for begin, end in zip(at[:-1].tolist(), at[1:].tolist(), strict=True):
        words[2 * begin : begin + end] = places[begin:end]
        words[begin + end : 2 * end] = bits[begin:end]
    return words


def _largest(
    comm: Communicator, places: NDArray[np.uint32], values: NDArray[np.float32], k: int, **how: Any
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return this rank's part of the k largest sums; of equal ones, those with the first places."""
    total = np.array([len(places)], np.int64)
    comm.all_reduce(total, **how)
    if total[0] <= k:
        return places, values
    bits = magnitude_bits(values)
    threshold, num_equal = threshold_over_ranks(comm, bits, k, **how)
    is_equal = bits == threshold
    of_ranks = np.empty(comm.size, np.int64)
    comm.all_gather(of_ranks, np.array([is_equal.sum()], np.int64), **how)
    left = max(num_equal - int(of_ranks[: comm.rank].sum()), 0)  # regions are in the order of ranks
    is_kept = (bits > threshold) | (is_equal & (np.cumsum(is_equal) <= left))
    return places[is_kept], values[is_kept]


def _gather(comm: Communicator, places: NDArray[np.uint32], values: NDArray[np.float32], **how: Any) -> SparseSum:
    """Give all ranks all parts."""
    counts = np.empty(comm.size, np.int64)
    comm.all_gather(counts, np.array([2 * len(places)], np.int64), **how)
    out = np.empty(int(counts.sum()), np.uint32)
    own = np.concatenate((places, values.view(np.uint32)))
    # A ring: every element passes each rank once, however unequal the parts are.
    comm.all_gatherv(out, own, counts.tolist(), **how)
    halves = [np.split(each, 2) for each in np.split(out, np.cumsum(counts)[:-1])]
    all_places = np.concatenate([first for first, _ in halves])
    return SparseSum(all_places, np.concatenate([second for _, second in halves]).view(np.float32))
