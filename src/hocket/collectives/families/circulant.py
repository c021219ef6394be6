"""Round-optimal schedules on circulant graphs, for every number of ranks.

Ranks are connected at distances from a list of skips, each half of the next one, rounded up. A broadcast of n blocks
takes n - 1 + q rounds, the optimum: Larsson Träff, "Optimal Broadcast Schedules in Logarithmic Time with Applications
to Broadcast, All-Broadcast, Reduction and All-Reduction" (arXiv 2407.18004). reduce_scatter takes q and all_reduce 2 q
rounds: the same author, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms" (arXiv 2410.14234).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.families._common import ceil_log2
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.collectives.transform import reverse, sequence
from hocket.errors import InvalidSchedule
from hocket.sim import Link

_REFERENCE = "arXiv 2407.18004"


def skips(num_ranks: int) -> list[int]:
    """Return the skips, from 1 up to the number of ranks."""
    halves = [num_ranks]
    while halves[-1] > 1:
        halves.append((halves[-1] + 1) // 2)
    return halves[::-1]


@lru_cache(maxsize=64)
def received_blocks(num_ranks: int) -> NDArray[np.int64]:
    """Return [rank, k]: the block that a rank receives over the k-th skip, relative to the first of q blocks.

    Raises:
        InvalidSchedule: the conditions of a valid schedule do not hold; no such number of ranks is known.
    """
    steps = skips(num_ranks)
    table = np.array([_receive_row(num_ranks, rank, steps)[1] for rank in range(num_ranks)]).reshape(num_ranks, -1)
    _check_conditions(table, [_base_block(rank, steps) for rank in range(num_ranks)], steps)
    return table


def _base_block(rank: int, steps: list[int]) -> int:
    """Return the first of q blocks that a rank receives: the last skip on its greedy path from the root."""
    q = len(steps) - 1
    for k in reversed(range(q)):
        if rank == steps[k]:
            return k
        if steps[k] < rank:
            rank -= steps[k]
    return q


def _receive_row(num_ranks: int, rank: int, steps: list[int]) -> tuple[int, list[int]]:
    """Search greedy paths that end near the rank, depth first; each determines the block of one round."""
    q = len(steps) - 1
    unused = list(range(q, -1, -1))  # skips without a round so far
    base = _base_block(rank, steps)
    unused.remove(base)
    row: list[int] = []
    target = num_ranks + rank
    reach = [*steps, 1 << 62]

    def search(begin: int, bound: int, largest: int) -> int:
        """Extend the path at `begin` by skips up to `largest`; return the end of the last accepted path."""
        for k in [skip for skip in unused if skip <= largest]:
            if k not in unused:
                continue
            end = begin + steps[k]
            if end > target - reach[len(row)] or end >= bound:
                continue
            if end <= target - reach[len(row) + 1]:
                search(end, bound, k)
            if begin > target - reach[len(row) + 1]:
                return bound
            bound = end
            row.append(k)
            unused.remove(k)
        return bound

    search(0, 2 * num_ranks, q)
    return base, [base if k == q else k - q for k in row]


def _check_conditions(table: NDArray[np.int64], bases: list[int], steps: list[int]) -> None:
    """Check that every rank receives q different blocks of q + 1, and only sends blocks that it has."""
    num_ranks, q = table.shape
    for rank in range(1, num_ranks):
        expected = (set(range(-q, 0)) - {bases[rank] - q}) | {bases[rank]}
        if set(table[rank].tolist()) != expected:
            raise InvalidSchedule(
                f"no circulant schedule for {num_ranks} ranks: rank {rank} does not receive all blocks"
            )
        for k in range(q):
            receiver = (rank + steps[k]) % num_ranks
            if receiver and table[receiver, k] not in (bases[rank] - q, *table[rank, :k]):
                raise InvalidSchedule(
                    f"no circulant schedule for {num_ranks} ranks: rank {rank} lacks the block for rank {receiver}"
                )


def _virtual_rounds(num_ranks: int, num_blocks: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield for every round the skip, and the block that each rank except the root receives, or -1."""
    q = ceil_log2(num_ranks)
    table = received_blocks(num_ranks)
    steps = skips(num_ranks)
    before = -(num_blocks - 1) % q
    has_last = np.zeros(num_ranks, bool)
    has_last[0] = True
    for number in range(before, before + num_blocks - 1 + q):
        blocks = np.minimum(table[:, number % q] + number // q * q - before, num_blocks - 1)
        blocks = np.where((blocks < 0) | ((blocks == num_blocks - 1) & has_last), -1, blocks)
        blocks[0] = -1
        has_last |= blocks == num_blocks - 1
        yield steps[number % q], blocks


def _broadcast_rounds(num_ranks: int, num_blocks: int) -> Rounds:
    if num_ranks == 1:
        return
    ranks = np.arange(num_ranks)
    for skip, blocks in _virtual_rounds(num_ranks, num_blocks):
        active = blocks >= 0
        yield Transfers((ranks[active] - skip) % num_ranks, ranks[active], blocks[active])


def broadcast_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return (num_blocks - 1 + ceil_log2(num_ranks)) * link.message_s(nbytes / num_blocks) if num_ranks > 1 else 0.0


@algorithm("broadcast", "circulant", formula="(n - 1 + q)(α + mβ/n)", seconds=broadcast_s, reference=_REFERENCE)
def circulant(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """In every round, each rank receives a new block and sends a block that the receiver lacks."""
    return make_schedule("broadcast", num_ranks, num_blocks, _broadcast_rounds(num_ranks, num_blocks))


def _all_gather_rounds(num_ranks: int, num_blocks: int) -> Rounds:
    """Run the broadcasts of all roots at the same time."""
    if num_ranks == 1:
        return
    roots = np.arange(num_ranks)[:, None]
    ranks = np.arange(num_ranks)
    for skip, blocks in _virtual_rounds(num_ranks, num_blocks):
        active = np.flatnonzero(blocks >= 0)
        destinations = (ranks[active] + roots) % num_ranks
        yield Transfers((destinations - skip) % num_ranks, destinations, roots * num_blocks + blocks[active])


def _all_gather_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 1) -> float:
    if num_ranks == 1:
        return 0.0
    rounds = num_blocks - 1 + ceil_log2(num_ranks)
    return rounds * link.alpha_s + (num_ranks - 1) / num_ranks * nbytes * link.beta_s


@algorithm(
    "all_gather",
    "circulant",
    formula="(n - 1 + q)α + (P - 1)/P mβ",
    seconds=_all_gather_s,
    reference=_REFERENCE,
)
def circulant_all_gather(num_ranks: int, num_blocks: int = 1) -> Schedule:
    """Simultaneous broadcasts from all ranks; n blocks per rank balance the rounds for irregular sizes."""
    return make_schedule("all_gather", num_ranks, num_ranks * num_blocks, _all_gather_rounds(num_ranks, num_blocks))


def _halving_rounds(num_ranks: int) -> Rounds:
    """Each rank sends its partial sums for the ranks ahead to the rank one skip ahead, largest skip first."""
    ranks = np.arange(num_ranks)[:, None]
    steps = skips(num_ranks)
    for skip, following in zip(steps[-2::-1], steps[:0:-1], strict=True):
        blocks = (ranks + np.arange(skip, following)) % num_ranks
        yield Transfers(ranks, (ranks + skip) % num_ranks, blocks, reduces=True)


def _halving(num_ranks: int) -> Schedule:
    return make_schedule("reduce_scatter", num_ranks, num_ranks, _halving_rounds(num_ranks))


def _reduce_scatter_s(link: Link, num_ranks: int, nbytes: float) -> float:
    share = (num_ranks - 1) / num_ranks * nbytes
    return ceil_log2(num_ranks) * link.alpha_s + share * (link.beta_s + link.gamma_s)


@algorithm(
    "reduce_scatter",
    "circulant",
    formula="qα + (P - 1)/P m(β + γ)",
    seconds=_reduce_scatter_s,
    exact=False,
    reference="arXiv 2410.14234",
)
def circulant_reduce_scatter(num_ranks: int) -> Schedule:
    """Recursive halving for every number of ranks, with skips instead of powers of two."""
    return _halving(num_ranks)


def _all_reduce_s(link: Link, num_ranks: int, nbytes: float) -> float:
    share = (num_ranks - 1) / num_ranks * nbytes
    return 2 * ceil_log2(num_ranks) * link.alpha_s + share * (2 * link.beta_s + link.gamma_s)


@algorithm(
    "all_reduce",
    "circulant",
    formula="2qα + 2(P - 1)/P mβ + (P - 1)/P mγ",
    seconds=_all_reduce_s,
    exact=False,
    reference="arXiv 2410.14234",
)
def circulant_all_reduce(num_ranks: int) -> Schedule:
    """reduce_scatter, then an all_gather in the reverse order."""
    scatter = _halving(num_ranks)
    steps = skips(num_ranks)
    ranks = np.arange(num_ranks)[:, None]
    gather = make_schedule(
        "all_gather",
        num_ranks,
        num_ranks,
        (
            Transfers(ranks, (ranks - skip) % num_ranks, (ranks + np.arange(following - skip)) % num_ranks)
            for skip, following in pairwise(steps)
        ),
    )
    return sequence("all_reduce", scatter, gather)


def _pipelined_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    if num_ranks == 1:
        return 0.0
    rounds = num_blocks - 1 + ceil_log2(num_ranks)
    return rounds * (2 * link.message_s(nbytes / num_blocks) + link.reduce_s(nbytes / num_blocks))


@algorithm(
    "all_reduce",
    "circulant_pipelined",
    formula="(n - 1 + q)(2(α + mβ/n) + mγ/n)",
    seconds=_pipelined_s,
    exact=False,
    reference=_REFERENCE,
)
def circulant_pipelined(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """The reversed broadcast as a reduce, then the broadcast."""
    broadcast = circulant(num_ranks, num_blocks)
    return sequence("all_reduce", reverse(broadcast), broadcast)
