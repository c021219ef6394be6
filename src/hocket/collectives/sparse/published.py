"""Sparse sums as others have published them, to compare with: what they send, and what they give.

Their residuals are kept as in the exact algorithm: an element that was sent and is at a place of the result is cleared.
Values travel as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import _native
from hocket.collectives.sparse.elements import ElementCodec, Elements
from hocket.collectives.sparse.exchange import Exchanged, decoded, encoded, gather, parts_of, scatter_and_add

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_LOCAL_PERIOD, _REGION_PERIOD = 32, 64
"""Steps after which Ok-Topk finds thresholds and regions anew."""
_IMBALANCE = 4
"""Ok-Topk balances if a rank has so many times the mean."""
_CORRECTIONS, _CORRECTION = 20, 1.02
"""How often, and by which factor, Gaussian-k corrects its threshold."""

Memory = dict[str, Any]
"""What an algorithm keeps from step to step on a rank."""
Exchange = Generator[Any, None, Exchanged]


@dataclass(frozen=True)
class PublishedAlgorithm:
    """A sparse sum.

    Args:
        name: as in `sparse_all_reduce(algorithm=)`.
        source: the paper.
        select: (array, k, memory) -> the elements that this rank sends.
        exchange: (comm, elements, size of the array, k, codec, memory, timeout=, backend=) -> the sum.
    """

    name: str
    source: str
    select: Callable[[NDArray[np.float32], int, Memory], Elements]
    exchange: Callable[..., Exchange]


def largest(x: NDArray[np.float32], k: int, memory: Memory) -> Elements:
    """Select exactly the k largest elements."""
    found = _native.select_largest(x, k)
    assert found is not None  # x is finite
    return Elements(found[0], found[1])


def _from(x: NDArray[np.float32], threshold: float) -> Elements:
    places = np.flatnonzero((np.abs(x) >= np.float32(threshold)) & (x != 0)).astype(np.uint32)
    return Elements(places, x[places])


def _total(parts: list[Elements]) -> Elements:
    return Elements(*_native.add_elements([(each.places, each.values) for each in parts]))


def _topk_a(
    comm: Communicator, own: Elements, size: int, k: int, codec: ElementCodec, memory: Memory, **how: Any
) -> Exchange:
    """Give all ranks the elements of all ranks, which each rank adds up."""
    message, _, carried = encoded(own, np.array([len(own.places)]), np.zeros(1, np.int64), codec)
    out, nbytes = yield from gather(comm, message, **how)
    parts = [decoded(each, 0, size, codec, rank) for rank, each in enumerate(parts_of(out, nbytes))]
    return Exchanged(_total(parts), carried, None, (0, len(message)))


def _equal_cuts(size: int, num_ranks: int) -> NDArray[np.int64]:
    return size * np.arange(num_ranks + 1, dtype=np.int64) // num_ranks


def _topk_dsa(
    comm: Communicator, own: Elements, size: int, k: int, codec: ElementCodec, memory: Memory, **how: Any
) -> Exchange:
    """Add elements in regions of equal width, and give all ranks the sums: as elements, or all of the region if that is
    shorter."""
    cuts = _equal_cuts(size, comm.size)
    sums, carried, sent_nbytes = yield from scatter_and_add(comm, own, cuts, codec, **how)
    first, last = cuts[comm.rank : comm.rank + 2].tolist()
    message, _, _ = encoded(sums, np.array([len(sums.places)]), cuts[comm.rank : comm.rank + 1], codec)
    is_dense = len(message) > 4 * (last - first)
    if is_dense:
        region = np.zeros(last - first, np.float32)
        region[sums.places - np.uint32(first)] = sums.values
        message = region.view(np.uint8)
    out, nbytes = yield from gather(comm, np.concatenate((np.array([is_dense], np.uint8), message)), **how)
    edges = cuts.tolist()
    parts = [
        _region(each, edges[rank], edges[rank + 1], codec, rank) for rank, each in enumerate(parts_of(out, nbytes))
    ]
    return Exchanged(_joined(parts), carried, None, (sent_nbytes, len(message) + 1))


def _region(message: NDArray[np.uint8], first: int, last: int, codec: ElementCodec, rank: int) -> Elements:
    if not message[0]:
        return decoded(message[1:], first, last, codec, rank)
    values = message[1:].copy().view(np.float32)
    places = np.flatnonzero(values)
    return Elements((places + first).astype(np.uint32), values[places])


def _joined(parts: list[Elements]) -> Elements:
    return Elements(np.concatenate([each.places for each in parts]), np.concatenate([each.values for each in parts]))


def _gtopk(
    comm: Communicator, own: Elements, size: int, k: int, codec: ElementCodec, memory: Memory, **how: Any
) -> Exchange:
    """Merge pairs of ranks, keep the k largest of each merge, and broadcast those of the last one.

    What a merge drops is not sent again if another rank has an element at the same place that survives: as published.
    """
    rank, kept, sent_nbytes = comm.rank, own, 0
    distance = 1
    while distance < comm.size:
        if rank % (2 * distance) == distance:
            message = _whole(kept, codec)
            yield comm.isend(np.array([len(message)], np.int64), rank - distance, **how)
            yield comm.isend(message, rank - distance, **how)
            sent_nbytes += len(message)
            break
        if rank + distance < comm.size:
            nbytes = np.empty(1, np.int64)
            yield comm.irecv(nbytes, rank + distance, **how)
            message = np.empty(int(nbytes[0]), np.uint8)
            yield comm.irecv(message, rank + distance, **how)
            kept = _largest_of(_total([kept, decoded(message, 0, size, codec, rank + distance)]), k)
        distance *= 2
    message = _whole(kept, codec)
    nbytes = np.array([len(message)], np.int64)
    yield comm.broadcast(nbytes, 0, async_op=True, **how)
    if rank:
        message = np.empty(int(nbytes[0]), np.uint8)
    yield comm.broadcast(message, 0, async_op=True, **how)
    return Exchanged(decoded(message, 0, size, codec, 0), own.values, None, (sent_nbytes, len(message) * (rank == 0)))


def _whole(elements: Elements, codec: ElementCodec) -> NDArray[np.uint8]:
    return encoded(elements, np.array([len(elements.places)]), np.zeros(1, np.int64), codec)[0]


def _largest_of(elements: Elements, k: int) -> Elements:
    if len(elements.places) <= k:
        return elements
    order = np.sort(np.argsort(-np.abs(elements.values), kind="stable")[:k])
    return Elements(elements.places[order], elements.values[order])


def _gaussian(x: NDArray[np.float32], k: int, memory: Memory) -> Elements:
    """Select by a threshold for normally distributed elements, corrected while the number is far from k."""
    mean, deviation = float(x.mean()), float(x.std())
    share = k / len(x)
    threshold = abs(mean) + deviation * NormalDist().inv_cdf(1 - share / 2) if share < 1 else 0.0
    for _ in range(_CORRECTIONS):
        count = np.count_nonzero(np.abs(x) >= np.float32(threshold))
        if 2 * k / 3 <= count <= 4 * k / 3:
            break
        threshold *= 1 / _CORRECTION if count < 2 * k / 3 else _CORRECTION
    return _from(x, threshold)


def _with_reused_threshold(x: NDArray[np.float32], k: int, memory: Memory) -> Elements:
    """Select by the k-th largest magnitude of the latest of every 32 steps."""
    if memory.get("step", 0) % _LOCAL_PERIOD == 0:
        found = _native.select_largest(x, k)
        assert found is not None
        memory["local"] = found[2]
    return _from(x, memory["local"])


def _ok_topk(
    comm: Communicator, own: Elements, size: int, k: int, codec: ElementCodec, memory: Memory, **how: Any
) -> Exchange:
    """Ok-Topk as published, without the corrections of thresholds that its code has beside the paper."""
    num_ranks = comm.size
    step = memory.get("step", 0)
    if step % _REGION_PERIOD == 0:
        at = len(own.places) * np.arange(1, num_ranks) // num_ranks
        inner = own.places[at].astype(np.int64) if len(own.places) else _equal_cuts(size, num_ranks)[1:-1]
        if num_ranks > 1:
            yield comm.all_reduce(inner, async_op=True, **how)
        memory["cuts"] = np.concatenate(([0], inner // num_ranks, [size]))
    cuts = memory["cuts"]
    sums, carried, sent_nbytes = yield from scatter_and_add(comm, own, cuts, codec, **how)
    if step % _LOCAL_PERIOD == 0:
        values, counts = yield from gather(comm, np.abs(sums.values).view(np.uint8), **how)
        everything = values.view(np.float32)
        memory["global"] = float(np.sort(everything)[-min(k, len(everything))]) if len(everything) else 0.0
        sent_nbytes += int(counts[comm.rank])
    is_kept = np.abs(sums.values) >= np.float32(memory["global"])
    kept = yield from _balanced(comm, Elements(sums.places[is_kept], sums.values[is_kept]), codec, size, **how)
    message = _whole(kept, codec)
    out, nbytes = yield from gather(comm, message, **how)
    parts = [decoded(each, 0, size, codec, rank) for rank, each in enumerate(parts_of(out, nbytes))]
    memory["step"] = step + 1  # at the end: a step that raises does not count
    return Exchanged(_joined(parts), carried, None, (sent_nbytes, len(message)))


def _balanced(
    comm: Communicator, kept: Elements, codec: ElementCodec, size: int, **how: Any
) -> Generator[Pending, None, Elements]:
    """Give all ranks equally many of the kept sums, if some rank has four times the mean."""
    counts = np.empty(comm.size, np.int64)
    yield comm.all_gather(counts, np.array([len(kept.places)], np.int64), async_op=True, **how)
    total = int(counts.sum())
    if counts.max() * comm.size <= _IMBALANCE * total:
        return kept
    begin = int(counts[: comm.rank].sum())
    ends = np.clip(_equal_cuts(total, comm.size)[1:] - begin, 0, len(kept.places))
    message, nbytes, _ = encoded(kept, ends, np.zeros(comm.size, np.int64), codec)
    out_nbytes = np.empty_like(nbytes)
    yield comm.all_to_all(out_nbytes, nbytes, async_op=True, **how)
    out = np.empty(int(out_nbytes.sum()), np.uint8)
    yield comm.all_to_allv(out, message, out_nbytes.tolist(), nbytes.tolist(), async_op=True, **how)
    return _joined([decoded(each, 0, size, codec, rank) for rank, each in enumerate(parts_of(out, out_nbytes))])


PUBLISHED = {
    each.name: each
    for each in (
        PublishedAlgorithm("ok-topk", "Li and Hoefler, arXiv 2201.07598", _with_reused_threshold, _ok_topk),
        PublishedAlgorithm("topk-a", "TopkA: all ranks gather all elements", largest, _topk_a),
        PublishedAlgorithm("topk-dsa", "Renggli et al., SparCML, arXiv 1802.08021", largest, _topk_dsa),
        PublishedAlgorithm("gtopk", "Shi et al., arXiv 1901.04359", largest, _gtopk),
        PublishedAlgorithm("gaussian-k", "Shi et al., arXiv 1911.08772", _gaussian, _topk_a),
    )
}
