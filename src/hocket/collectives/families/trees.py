"""Broadcast along trees: flat, binomial, k-nomial, and pipelined binary."""

from __future__ import annotations

import math

import numpy as np

from hocket.collectives.families._common import ceil_log2, floor_log2
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.sim import Link


def _flat_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return (num_ranks - 1) * link.message_s(nbytes)


@algorithm("broadcast", "flat", formula="(P - 1)(α + mβ)", seconds=_flat_s)
def flat(num_ranks: int) -> Schedule:
    """The root sends to all ranks in turn."""
    return make_schedule("broadcast", num_ranks, 1, (Transfers(0, rank, 0) for rank in range(1, num_ranks)))


def _levels(num_ranks: int, radix: int) -> int:
    levels, reach = 0, 1
    while reach < num_ranks:
        levels, reach = levels + 1, reach * radix
    return levels


def k_nomial_s(link: Link, num_ranks: int, nbytes: float, radix: int = 4) -> float:
    if num_ranks == 1:
        return 0.0
    levels_below = _levels(num_ranks, radix) - 1
    largest = int(radix**levels_below)  # ranks in the largest subtrees of the root
    num_children = math.ceil(num_ranks / largest) - 1  # heads of these subtrees, the last of which may be smaller
    return (num_children + levels_below * (radix - 1)) * link.message_s(nbytes)


def _k_nomial_rounds(num_ranks: int, radix: int) -> Rounds:
    has = np.array([0])
    for level in reversed(range(_levels(num_ranks, radix))):
        senders, distance = has, radix**level
        for child in range(1, radix):
            destinations = senders + child * distance
            exists = destinations < num_ranks
            yield Transfers(senders[exists], destinations[exists], 0)
            has = np.concatenate([has, destinations[exists]])


@algorithm(
    "broadcast",
    "k_nomial",
    formula="(⌈P/k^(d-1)⌉ - 1 + (d - 1)(k - 1))(α + mβ), d = ⌈log_k P⌉",
    seconds=k_nomial_s,
)
def k_nomial(num_ranks: int, radix: int = 4) -> Schedule:
    """Per level, each rank with the array sends it to k - 1 others, the heads of the largest subtrees first."""
    return make_schedule("broadcast", num_ranks, 1, _k_nomial_rounds(num_ranks, max(2, radix)))


def _binomial_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return ceil_log2(num_ranks) * link.message_s(nbytes)


@algorithm("broadcast", "binomial", formula="q(α + mβ)", seconds=_binomial_s)
def binomial(num_ranks: int) -> Schedule:
    """The number of ranks that have the array doubles in each round."""
    return make_schedule("broadcast", num_ranks, 1, _k_nomial_rounds(num_ranks, 2))


def binary_tree_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    step = link.message_s(nbytes / num_blocks)
    if num_ranks <= 2:
        return (num_ranks - 1) * num_blocks * step
    depth = floor_log2(num_ranks)
    on_last_level = num_ranks - (2**depth - 1)
    first_block = 2 * (depth - 1) if on_last_level == 0 else max(2 * (depth - 1), depth + floor_log2(on_last_level))
    return (first_block + 2 * (num_blocks - 1)) * step


def _binary_tree_rounds(num_ranks: int, num_blocks: int) -> Rounds:
    ranks = np.arange(1, num_ranks)
    parents = (ranks - 1) // 2
    is_right = (ranks - 1) % 2
    first = np.zeros(num_ranks, int)  # the round in which a rank can send its first block
    for rank in range(1, num_ranks):
        first[rank] = first[(rank - 1) // 2] + 1 + (rank - 1) % 2
    period = 1 if num_ranks == 2 else 2
    sent_in = first[parents] + is_right
    for number in range(int(first.max()) + period * (num_blocks - 1)):
        block, rest = np.divmod(number - sent_in, period)
        active = (rest == 0) & (block >= 0) & (block < num_blocks)
        yield Transfers(parents[active], ranks[active], block[active])


@algorithm(
    "broadcast",
    "binary_tree",
    formula="2(n + ⌈log2(P + 1)⌉ - 2)(α + mβ/n) for full trees",
    seconds=binary_tree_s,
)
def binary_tree(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Blocks are pipelined down a binary tree; every rank sends to its left child, then to its right child."""
    return make_schedule("broadcast", num_ranks, num_blocks, _binary_tree_rounds(num_ranks, num_blocks))
