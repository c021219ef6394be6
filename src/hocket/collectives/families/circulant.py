"""Round-optimal schedules on circulant graphs, for every number of ranks.

Ranks are connected over a list of skips, each half of the next one, rounded up. A broadcast of n blocks is over after
n - 1 + q rounds, the least there can be. Larsson Träff, "Optimal Broadcast Schedules in Logarithmic Time with
Applications to Broadcast, All-Broadcast, Reduction and All-Reduction" (arXiv 2407.18004); reduce_scatter and all_reduce
in 2 q rounds: the same, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms" (arXiv 2410.14234).
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
    found = [num_ranks]
    while found[-1] > 1:
        found.append((found[-1] + 1) // 2)
    return found[::-1]


@lru_cache(maxsize=64)
def received_blocks(num_ranks: int) -> NDArray[np.int64]:
    """Return [rank, k]: which block a rank receives over the k-th skip, relative to the first of every q blocks.

    Raises:
        InvalidSchedule: the conditions that make it a schedule do not hold; none such is known.
    """
    steps = skips(num_ranks)
    table = np.array([_receive_row(num_ranks, rank, steps)[1] for rank in range(num_ranks)]).reshape(num_ranks, -1)
    _check_conditions(table, [_base_block(rank, steps) for rank in range(num_ranks)], steps)
    return table


def _base_block(rank: int, steps: list[int]) -> int:
    """The last skip on the greedy way from the root: the block of every q that the rank gets first."""
    q = len(steps) - 1
    for k in reversed(range(q)):
        if rank == steps[k]:
            return k
        if steps[k] < rank:
            rank -= steps[k]
    return q


def _receive_row(num_ranks: int, rank: int, steps: list[int]) -> tuple[int, list[int]]:
    """Walk the greedy ways that end near the rank, depth first: each gives the block of one round."""
    q = len(steps) - 1
    left = list(range(q, -1, -1))  # skips that no round has yet
    base = _base_block(rank, steps)
    left.remove(base)
    row: list[int] = []
    target = num_ranks + rank
    reach = [*steps, 1 << 62]

    def walk(begin: int, most: int, candidates: int) -> int:
        """Take ways that go on from `begin` with skips up to `candidates`; returns the nearest that was taken."""
        for k in [each for each in left if each <= candidates]:
            if k not in left:
                continue
            here = begin + steps[k]
            if here > target - reach[len(row)] or here >= most:
                continue
            if here <= target - reach[len(row) + 1]:
                walk(here, most, k)
            if begin > target - reach[len(row) + 1]:
                return most
            most = here
            row.append(k)
            left.remove(k)
        return most

    walk(0, 2 * num_ranks, q)
    return base, [base if k == q else k - q for k in row]


def _check_conditions(table: NDArray[np.int64], bases: list[int], steps: list[int]) -> None:
    """Every rank gets q different blocks of every q + 1, and sends on what it has by then."""
    num_ranks, q = table.shape
    for rank in range(1, num_ranks):
        wanted = (set(range(-q, 0)) - {bases[rank] - q}) | {bases[rank]}
        if set(table[rank].tolist()) != wanted:
            raise InvalidSchedule(f"no circulant schedule for {num_ranks} ranks: rank {rank} does not get all blocks")
        for k in range(q):
            receiver = (rank + steps[k]) % num_ranks
            if receiver and table[receiver, k] not in (bases[rank] - q, *table[rank, :k]):
                raise InvalidSchedule(
                    f"no circulant schedule for {num_ranks} ranks: rank {rank} does not have the block for {receiver}"
                )


def _virtual_rounds(num_ranks: int, num_blocks: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """For every round the skip, and the block that each rank but the root gets, or -1."""
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
        now = blocks >= 0
        yield Transfers((ranks[now] - skip) % num_ranks, ranks[now], blocks[now])


def broadcast_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return (num_blocks - 1 + ceil_log2(num_ranks)) * link.message_s(nbytes / num_blocks) if num_ranks > 1 else 0.0


@algorithm("broadcast", "circulant", formula="(n - 1 + q)(α + mβ/n)", seconds=broadcast_s, reference=_REFERENCE)
def circulant(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """In every round every rank receives a block that it lacks and sends one that another rank lacks."""
    return make_schedule("broadcast", num_ranks, num_blocks, _broadcast_rounds(num_ranks, num_blocks))


def _all_gather_rounds(num_ranks: int, num_blocks: int) -> Rounds:
    """All ranks are the root at once."""
    if num_ranks == 1:
        return
    roots = np.arange(num_ranks)[:, None]
    ranks = np.arange(num_ranks)
    for skip, blocks in _virtual_rounds(num_ranks, num_blocks):
        now = np.flatnonzero(blocks >= 0)
        destinations = (ranks[now] + roots) % num_ranks
        yield Transfers((destinations - skip) % num_ranks, destinations, roots * num_blocks + blocks[now])


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
    """Broadcasts from all ranks at once; with n blocks of every rank, irregular sizes share the rounds evenly."""
    return make_schedule("all_gather", num_ranks, num_ranks * num_blocks, _all_gather_rounds(num_ranks, num_blocks))


def _halving_rounds(num_ranks: int) -> Rounds:
    """What a rank holds for the ranks ahead of it goes to the one a skip ahead, largest skip first."""
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
    """Recursive halving for every number of ranks: the skips take the place of powers of two."""
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
    """reduce_scatter, then the same backwards as all_gather."""
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
    """The broadcast backwards as a reduce, then the broadcast."""
    forwards = circulant(num_ranks, num_blocks)
    return sequence("all_reduce", reverse(forwards), forwards)
