"""Ring algorithms: every rank sends only to the next rank."""

from __future__ import annotations

import numpy as np

from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Schedule, Transfers, make_schedule
from hocket.collectives.transform import reverse, segmented, sequence
from hocket.sim import Link

_REFERENCE = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009"


def _all_gather_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return (num_ranks - 1) * link.message_s(nbytes / num_ranks)


@algorithm("all_gather", "ring", formula="(P - 1)(α + mβ/P)", seconds=_all_gather_s)
def ring_all_gather(num_ranks: int) -> Schedule:
    """Every rank forwards the block that it received in the previous round."""
    ranks = np.arange(num_ranks)
    rounds = (
        Transfers(ranks, (ranks + 1) % num_ranks, (ranks - number) % num_ranks) for number in range(num_ranks - 1)
    )
    return make_schedule("all_gather", num_ranks, num_ranks, rounds)


def _reduce_scatter_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return (num_ranks - 1) * (link.message_s(nbytes / num_ranks) + link.reduce_s(nbytes / num_ranks))


@algorithm("reduce_scatter", "ring", formula="(P - 1)(α + m(β + γ)/P)", seconds=_reduce_scatter_s)
def ring_reduce_scatter(num_ranks: int) -> Schedule:
    """The reversed ring of all_gather."""
    return reverse(ring_all_gather(num_ranks))


def _ring(num_ranks: int) -> Schedule:
    return sequence("all_reduce", ring_reduce_scatter(num_ranks), ring_all_gather(num_ranks))


def _ring_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return _reduce_scatter_s(link, num_ranks, nbytes) + _all_gather_s(link, num_ranks, nbytes)


@algorithm("all_reduce", "ring", formula="2(P - 1)(α + mβ/P) + (P - 1)mγ/P", seconds=_ring_s, reference=_REFERENCE)
def ring(num_ranks: int) -> Schedule:
    """reduce_scatter by ring, then all_gather by ring."""
    return _ring(num_ranks)


def _segmented_ring_s(link: Link, num_ranks: int, nbytes: float, num_segments: int = 4) -> float:
    if num_ranks == 1:
        return 0.0
    segment = nbytes / num_ranks / num_segments
    step, reduction = link.message_s(segment), link.reduce_s(segment)
    lap = num_segments * step
    if num_segments == 1:
        return _ring_s(link, num_ranks, nbytes)
    if reduction <= step:  # hidden by the message of the next segment
        return 2 * (num_ranks - 1) * lap
    return (num_ranks - 1) * num_segments * reduction + 2 * step + (num_ranks - 2) * lap


@algorithm(
    "all_reduce",
    "segmented_ring",
    formula="2(P - 1)S(α + mβ/PS) if γ is hidden, S segments",
    seconds=_segmented_ring_s,
    reference=_REFERENCE,
)
def segmented_ring(num_ranks: int, num_segments: int = 4) -> Schedule:
    """The ring with segmented blocks: a segment is reduced while the next is received and the previous is sent."""
    return segmented(_ring(num_ranks), num_segments)
