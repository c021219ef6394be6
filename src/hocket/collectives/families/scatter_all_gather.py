"""Broadcast as a scatter and an all_gather: every rank sends the array about once, for any number of ranks.

Barnett et al., "Interprocessor collective communication library (InterCom)", 1994; MPICH's long broadcast.
"""

from __future__ import annotations

import numpy as np

from hocket.collectives.families._common import ceil_log2
from hocket.collectives.families.bruck import bruck_all_gather
from hocket.collectives.families.ring import ring_all_gather
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.collectives.transform import sequence, without_repeats
from hocket.sim import Link

_REFERENCE = "Barnett et al., 1994"


def _scatter_rounds(num_ranks: int) -> Rounds:
    """Send to each child of a binomial tree the blocks of the ranks in its subtree."""
    for level in reversed(range(ceil_log2(num_ranks))):
        distance = 1 << level
        senders = range(0, num_ranks - distance, 2 * distance)
        parts = [
            Transfers(sender, sender + distance, np.arange(sender + distance, min(sender + 2 * distance, num_ranks)))
            for sender in senders
        ]
        yield parts


def _scatter_and(num_ranks: int, gather: Schedule) -> Schedule:
    scatter = make_schedule("broadcast", num_ranks, num_ranks, _scatter_rounds(num_ranks))
    return without_repeats(sequence("broadcast", scatter, gather))


def _scatter_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return ceil_log2(num_ranks) * link.alpha_s + (num_ranks - 1) / num_ranks * nbytes * link.beta_s


def ring_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return _scatter_s(link, num_ranks, nbytes) + (num_ranks - 1) * link.message_s(nbytes / num_ranks)


@algorithm(
    "broadcast",
    "scatter_ring",
    formula="(q + P - 1)α + 2(P - 1)/P mβ",
    seconds=ring_s,
    reference=_REFERENCE,
)
def scatter_ring(num_ranks: int) -> Schedule:
    """Scatter, then all_gather by ring."""
    return _scatter_and(num_ranks, ring_all_gather(num_ranks))


def _bruck_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return 2 * _scatter_s(link, num_ranks, nbytes)


@algorithm(
    "broadcast",
    "scatter_bruck",
    formula="2qα + 2(P - 1)/P mβ",
    seconds=_bruck_s,
    reference=_REFERENCE,
)
def scatter_bruck(num_ranks: int) -> Schedule:
    """Scatter, then all_gather by Bruck's algorithm."""
    return _scatter_and(num_ranks, bruck_all_gather(num_ranks))
