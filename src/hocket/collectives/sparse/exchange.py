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

from hocket import _native
from hocket.collectives.sparse.elements import ElementCodec, Elements
from hocket.collectives.sparse.regions import MOST_TOLD, BinCounts, cut_regions
from hocket.collectives.sparse.ring import all_gather_parts
from hocket.collectives.sparse.threshold import Bounds, Threshold, magnitude_bits, sample, threshold_over_ranks
from hocket.errors import WrongResult

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_GUESSED = 64
"""Few ranks send up to 1/64 more sums than are kept, instead of one more operation."""


@dataclass(frozen=True)
class Exchanged:
    """The sum, and what the codec has changed on this rank.

    Args:
        total: the largest elements of the sum; equal on all ranks.
        carried: this rank's elements as their receivers have read them.
        lost: what this rank has rounded off from sums of its region; None: the codec is exact.
        nbytes: bytes of the elements that this rank has sent to others, in both phases.
    """

    total: Elements
    carried: NDArray[np.float32]
    lost: Elements | None
    nbytes: tuple[int, int]


def exchange(
    comm: Communicator,
    own: Elements,
    size: int,
    k: int,
    counted: BinCounts,
    codec: ElementCodec,
    **how: Any,
) -> Generator[Pending, None, Exchanged]:
    """Add the elements of all ranks, and keep the k largest sums; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        own: this rank's elements.
        size: number of elements of the whole array.
        k: most elements of the result; equal on all ranks.
        counted: of the places of all ranks, see `count_first`.
        codec: of the messages.
        how: timeout and backend, as for `Communicator.all_reduce`.
    """
    codec = codec.for_count(k)
    cuts, of_ranks = yield from cut_regions(comm, own.places, size, counted, **how)
    told = None if of_ranks is None else of_ranks[:, comm.rank]
    sums, carried, sent_nbytes = yield from scatter_and_add(comm, own, cuts, codec, told, **how)
    samples = yield from sample(comm, sums.values, **how)
    num_kept, bounds = samples.sizes, None
    if num_kept.sum() > k:
        bounds = samples.bounds(k)
        if _can_guess(comm, codec, bounds, k):
            total, own_nbytes = yield from _gather_from(comm, sums, cuts, bounds, k, codec, **how)
            return Exchanged(total, carried, None, (sent_nbytes, own_nbytes))
    kept = sums
    if bounds is not None:
        threshold = yield from threshold_over_ranks(comm, samples, bounds, k, **how)
        kept, num_kept = _largest(comm.rank, sums, threshold), threshold.kept()
    message, _, rounded = encoded(kept, np.array([len(kept.places)]), cuts[comm.rank : comm.rank + 1], codec)
    lost = Elements(kept.places, kept.values - rounded) if codec.rounds else None
    out, nbytes = yield from gather(comm, message, codec.nbytes_of(num_kept), **how)
    edges = cuts.tolist()
    parts = [
        decoded(each, edges[rank], edges[rank + 1], codec, rank) for rank, each in enumerate(parts_of(out, nbytes))
    ]
    total = Elements(np.concatenate([each.places for each in parts]), np.concatenate([each.values for each in parts]))
    return Exchanged(total, carried, lost, (sent_nbytes, len(message) * (comm.size > 1)))


def encoded(
    elements: Elements, ends: NDArray[np.int64], firsts: NDArray[np.int64], codec: ElementCodec
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]:
    """Return the messages of parts of elements, one after the other, their numbers of bytes, and the values in them.

    Args:
        elements: all of them.
        ends: number of elements before the end of each part.
        firsts: first place of each part's region.
        codec: of the messages.
    """
    return _native.encode_elements(elements.places, elements.values, ends, firsts, *codec.numbers)


def decoded(message: NDArray[np.uint8], first: int, last: int, codec: ElementCodec, rank: int) -> Elements:
    """Return the elements of a message.

    Raises:
        WrongResult: it is not one of elements with places from `first` to below `last`.
    """
    found = _native.decode_elements(message, first, last, *codec.numbers)
    if found is None:
        raise WrongResult(f"the message of rank {rank} in a sparse sum is damaged, or from another version of hocket")
    return Elements(*found)


def parts_of(message: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Return messages that came one after the other."""
    return np.split(message, np.cumsum(nbytes)[:-1])


def scatter_and_add(
    comm: Communicator,
    own: Elements,
    cuts: NDArray[np.int64],
    codec: ElementCodec,
    counts: NDArray[np.int64] | None = None,
    **how: Any,
) -> Generator[Pending, None, tuple[Elements, NDArray[np.float32], int]]:
    """Send elements to the ranks of their regions; return the sums of this rank's region, added in the order of ranks,
    its elements as their receivers have read them, and the bytes that were sent to others.

    Args:
        comm: a communicator of all ranks.
        own: this rank's elements.
        cuts: first place of each rank's region, and the end.
        codec: of the messages.
        counts: how many elements each rank has in this rank's region; None: not known.
        how: timeout and backend, as for `Communicator.all_to_allv`.
    """
    ends = np.searchsorted(own.places, cuts[1:])
    message, nbytes, carried = encoded(own, ends, cuts[:-1], codec)
    out_nbytes = None if counts is None else codec.nbytes_of(counts)
    if out_nbytes is None:
        out_nbytes = np.empty_like(nbytes)
        yield comm.all_to_all(out_nbytes, nbytes, async_op=True, **how)
    out = np.empty(int(out_nbytes.sum()), np.uint8)
    yield comm.all_to_allv(out, message, out_nbytes.tolist(), nbytes.tolist(), async_op=True, **how)
    first, last = cuts[comm.rank : comm.rank + 2].tolist()
    parts = [decoded(each, first, last, codec, rank) for rank, each in enumerate(parts_of(out, out_nbytes))]
    sums = Elements(*_native.add_elements([(each.places, each.values) for each in parts]))
    return sums, carried, int(nbytes.sum() - nbytes[comm.rank])


def _largest(rank: int, sums: Elements, threshold: Threshold) -> Elements:
    """Return a rank's part of the k largest sums; of equal ones, those with the first places."""
    bits = magnitude_bits(sums.values)
    is_equal = bits == threshold.bits
    left = max(threshold.num_equal - int(threshold.of_ranks[:rank].sum()), 0)  # regions are in the order of ranks
    is_kept = (bits > threshold.bits) | (is_equal & (np.cumsum(is_equal) <= left))
    return Elements(sums.places[is_kept], sums.values[is_kept])


def _can_guess(comm: Communicator, codec: ElementCodec, bounds: Bounds, k: int) -> bool:
    """Whether ranks may send some sums that are not among the k largest, to be spared an operation.

    The lengths of messages must be known, and values arrive as they are.
    """
    most = int(bounds.most_from.sum())
    return (
        comm.size <= MOST_TOLD
        and codec.places == "words"
        and not codec.rounds
        and most * _GUESSED <= k * (_GUESSED + 1)
    )


def _gather_from(
    comm: Communicator, sums: Elements, cuts: NDArray[np.int64], bounds: Bounds, k: int, codec: ElementCodec, **how: Any
) -> Generator[Pending, None, tuple[Elements, int]]:
    """Give all ranks the sums of all ranks from the lower bound; return the k largest of them, and the bytes sent."""
    is_candidate = magnitude_bits(sums.values) >= bounds.low
    candidates = Elements(sums.places[is_candidate], sums.values[is_candidate])
    message, _, _ = encoded(candidates, np.array([len(candidates.places)]), cuts[comm.rank : comm.rank + 1], codec)
    nbytes = codec.nbytes_of(bounds.most_from)
    assert nbytes is not None
    padded = np.zeros(int(nbytes[comm.rank]), np.uint8)  # the others know only how many they are at most
    padded[: len(message)] = message
    out, _ = yield from gather(comm, padded, nbytes, **how)
    edges, parts = cuts.tolist(), []
    for rank, each in enumerate(parts_of(out, nbytes)):
        count = min(int(each[:4].copy().view(np.uint32)[0]), int(bounds.most_from[rank]))
        length = codec.nbytes_of(np.array([count]))
        assert length is not None
        parts.append(decoded(each[: int(length[0])], edges[rank], edges[rank + 1], codec, rank))
    places, values = (
        np.concatenate(each) for each in zip(*((each.places, each.values) for each in parts), strict=True)
    )
    bits = magnitude_bits(values)
    threshold = np.partition(bits, len(bits) - k)[len(bits) - k]
    is_equal = bits == threshold
    is_kept = (bits > threshold) | (is_equal & (np.cumsum(is_equal) <= k - np.count_nonzero(bits > threshold)))
    return Elements(places[is_kept], values[is_kept]), len(padded) * (comm.size > 1)


def gather(
    comm: Communicator, message: NDArray[np.uint8], nbytes: NDArray[np.int64] | None = None, **how: Any
) -> Generator[Pending, None, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Give all ranks the messages of all ranks, one after the other, and their numbers of bytes (None: not known)."""
    if nbytes is None:
        nbytes = np.empty(comm.size, np.int64)
        yield comm.all_gather(nbytes, np.array([len(message)], np.int64), async_op=True, **how)
    if comm.num_hosts == 1 and not comm.is_virtual and how.get("backend", "shm") == "shm" and "shm" in comm.backends:
        out = np.empty(int(nbytes.sum()), np.uint8)  # each rank reads the others' parts where they are
        yield comm.all_gatherv(out, message, nbytes.tolist(), async_op=True, **how)
    else:
        out = yield from all_gather_parts(comm, message, nbytes, **how)
    return out, nbytes
