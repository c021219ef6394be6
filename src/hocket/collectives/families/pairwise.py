"""all_to_all with one message per block, to one partner or to a window of partners at a time."""

from __future__ import annotations

import numpy as np

from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.sim import Link


def _rounds(num_ranks: int, window: int) -> Rounds:
    ranks = np.arange(num_ranks)
    yield Transfers(ranks, ranks, ranks * (num_ranks + 1), ranks, num_ranks + ranks)
    for first in range(1, num_ranks, window):
        distances = np.arange(first, min(first + window, num_ranks))[:, None]
        targets = (ranks + distances) % num_ranks
        yield Transfers(ranks, targets, ranks * num_ranks + targets, targets, num_ranks + ranks)


def _pairwise_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return (num_ranks - 1) * link.message_s(nbytes / num_ranks)


@algorithm("all_to_all", "pairwise", formula="(P - 1)(α + mβ/P)", seconds=_pairwise_s)
def pairwise(num_ranks: int) -> Schedule:
    """In round i, rank r sends to rank r + i and receives from rank r - i."""
    return make_schedule("all_to_all", num_ranks, num_ranks**2, _rounds(num_ranks, 1), num_slots=2 * num_ranks)


def _windowed_s(link: Link, num_ranks: int, nbytes: float, window: int = 4) -> float:
    return -(-(num_ranks - 1) // window) * link.alpha_s + (num_ranks - 1) / num_ranks * nbytes * link.beta_s


@algorithm("all_to_all", "windowed", formula="⌈(P - 1)/w⌉α + (P - 1)/P mβ, w messages at a time", seconds=_windowed_s)
def windowed(num_ranks: int, window: int = 4) -> Schedule:
    """Like pairwise, with `window` messages of a rank in flight at a time."""
    return make_schedule(
        "all_to_all",
        num_ranks,
        num_ranks**2,
        _rounds(num_ranks, window),
        num_slots=2 * num_ranks,
        ports=max(1, min(window, num_ranks - 1)),
    )
