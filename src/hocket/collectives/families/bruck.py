"""Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.

Blocks are numbered here, so no rotation in memory is needed.
"""

from __future__ import annotations

import numpy as np

from hocket.collectives.families._common import ceil_log2
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.sim import Link

_REFERENCE = "Bruck et al., 1997"


def _all_gather_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return ceil_log2(num_ranks) * link.alpha_s + (num_ranks - 1) / num_ranks * nbytes * link.beta_s


@algorithm("all_gather", "bruck", formula="qα + (P - 1)/P mβ", seconds=_all_gather_s, reference=_REFERENCE)
def bruck_all_gather(num_ranks: int) -> Schedule:
    """In round k, rank r sends its 2^k blocks to rank r - 2^k."""
    ranks = np.arange(num_ranks)[:, None]
    rounds = (
        Transfers(
            ranks,
            (ranks - (1 << level)) % num_ranks,
            (ranks + np.arange(min(1 << level, num_ranks - (1 << level)))) % num_ranks,
        )
        for level in range(ceil_log2(num_ranks))
    )
    return make_schedule("all_gather", num_ranks, num_ranks, rounds)


def _all_to_all_s(link: Link, num_ranks: int, nbytes: float) -> float:
    block = nbytes / num_ranks
    distances = range(num_ranks)
    return sum(
        link.message_s(sum(distance >> level & 1 for distance in distances) * block)
        for level in range(ceil_log2(num_ranks))
    )


def _all_to_all_rounds(num_ranks: int) -> Rounds:
    ranks = np.arange(num_ranks)[:, None]
    yield Transfers(ranks[:, 0], ranks[:, 0], ranks[:, 0] * (num_ranks + 1), ranks[:, 0], num_ranks + ranks[:, 0])
    for level in range(ceil_log2(num_ranks)):
        hop = 1 << level
        distances = np.arange(num_ranks)
        distances = distances[distances & hop != 0]
        origins = (ranks - distances % hop) % num_ranks
        targets = (origins + distances) % num_ranks
        is_first, is_last = distances % hop == 0, distances < 2 * hop
        scratch = 2 * num_ranks + distances
        yield Transfers(
            ranks,
            (ranks + hop) % num_ranks,
            origins * num_ranks + targets,
            np.where(is_first, targets, scratch),
            np.where(is_last, num_ranks + origins, scratch),
        )


@algorithm(
    "all_to_all",
    "bruck",
    formula="sum over k < q of α + (blocks whose distance has bit k) mβ/P, about q(α + mβ/2)",
    seconds=_all_to_all_s,
    reference=_REFERENCE,
)
def bruck_all_to_all(num_ranks: int) -> Schedule:
    """In round k, a block moves by 2^k if bit k of its distance is set; such blocks of a rank form one message."""
    return make_schedule("all_to_all", num_ranks, num_ranks**2, _all_to_all_rounds(num_ranks), num_slots=3 * num_ranks)
