"""Pipelines along a chain of ranks: broadcast (one chain or several), scan, and the all_reduce of fixed order.

The pipelined chain is that of Awan, Subramoni, Chu and Panda, "Optimized Broadcast for Deep Learning Workloads on
Dense-GPU InfiniBand Clusters: MPI or NCCL?" (arXiv 1707.09414), section 4.
"""

from __future__ import annotations

import numpy as np

from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.collectives.transform import sequence
from hocket.sim import Link


def chain_rounds(num_ranks: int, num_blocks: int, reduces: bool = False) -> Rounds:
    """Block b leaves rank r in round b + r."""
    senders = np.arange(num_ranks - 1)
    for number in range(num_blocks + num_ranks - 2):
        blocks = number - senders
        now = (blocks >= 0) & (blocks < num_blocks)
        yield Transfers(senders[now], senders[now] + 1, blocks[now], reduces=reduces)


def _chain_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return (num_blocks + num_ranks - 2) * link.message_s(nbytes / num_blocks) if num_ranks > 1 else 0.0


@algorithm(
    "broadcast", "chain", formula="(n + P - 2)(α + mβ/n)", seconds=_chain_s, reference="arXiv 1707.09414, section 4"
)
def chain(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Blocks run down the ranks one behind the other: rank r receives block b + 1 while it sends block b."""
    return make_schedule("broadcast", num_ranks, num_blocks, chain_rounds(num_ranks, num_blocks))


def _multi_chain_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8, num_chains: int = 2) -> float:
    if num_ranks == 1:
        return 0.0
    num_chains = min(num_chains, num_ranks - 1)
    rounds = num_blocks * num_chains + (num_ranks - 1) // num_chains - 1
    return rounds * link.message_s(nbytes / num_blocks)


def _multichain_rounds(num_ranks: int, num_blocks: int, num_chains: int) -> Rounds:
    ranks = np.arange(1, num_ranks)
    chains, places = (ranks - 1) % num_chains, (ranks - 1) // num_chains
    predecessors = np.maximum(ranks - num_chains, 0)
    last = (num_blocks - 1) * num_chains + int((chains + places).max(initial=-1))
    for number in range(last + 1):
        blocks, rest = np.divmod(number - chains - places, num_chains)
        now = (rest == 0) & (blocks >= 0) & (blocks < num_blocks)
        yield Transfers(predecessors[now], ranks[now], blocks[now])


@algorithm(
    "broadcast",
    "multi_chain",
    formula="(nF + ⌊(P - 1)/F⌋ - 1)(α + mβ/n), F chains",
    seconds=_multi_chain_s,
    reference="Open MPI, coll_base_topo.c, chain with fan-out",
)
def multi_chain(num_ranks: int, num_blocks: int = 8, num_chains: int = 2) -> Schedule:
    """The root feeds several chains in turn: F times the traffic at the root, for chains of an F-th of the length."""
    num_chains = max(1, min(num_chains, num_ranks - 1))
    return make_schedule("broadcast", num_ranks, num_blocks, _multichain_rounds(num_ranks, num_blocks, num_chains))


def pipelined_reduction_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int) -> float:
    """Of blocks that are sent on as soon as they are reduced, along all ranks."""
    step, reduction = link.message_s(nbytes / num_blocks), link.reduce_s(nbytes / num_blocks)
    return (num_ranks - 1) * (step + reduction) + (num_blocks - 1) * max(step, reduction) if num_ranks > 1 else 0.0


def _scan_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return pipelined_reduction_s(link, num_ranks, nbytes, num_blocks)


@algorithm("scan", "chain", formula="(P - 1)(α + (β + γ)m/n) + (n - 1) max(α + mβ/n, mγ/n)", seconds=_scan_s)
def chain_scan(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Every rank adds what the one before it has, and sends the sum on."""
    return make_schedule("scan", num_ranks, num_blocks, chain_rounds(num_ranks, num_blocks, reduces=True))


def _fixed_order_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    if num_ranks == 1:
        return 0.0
    step = link.message_s(nbytes / num_blocks)
    up = pipelined_reduction_s(link, num_ranks, nbytes, num_blocks)
    down_behind_it = up + (num_ranks - 1) * step
    if num_ranks == 2:
        return down_behind_it
    # The last rank but one sends all blocks up before it sends the first one down.
    last_but_one = pipelined_reduction_s(link, num_ranks - 1, nbytes, num_blocks) + step
    return max(down_behind_it, last_but_one + (num_blocks + num_ranks - 3) * step)


@algorithm(
    "all_reduce",
    "fixed_order",
    formula="max(T(P) + (P - 1)t, T(P - 1) + (n + P - 2)t), T that of the chain's scan, t = α + mβ/n",
    seconds=_fixed_order_s,
)
def fixed_order(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """((x0 + x1) + x2) + ...: every element is reduced in the order of the ranks, however the array is cut.

    The same numbers on every run and every number of blocks, equal to a loop over the ranks.
    """
    up = make_schedule("reduce", num_ranks, num_blocks, chain_rounds(num_ranks, num_blocks, reduces=True))
    down = make_schedule(
        "broadcast",
        num_ranks,
        num_blocks,
        (
            Transfers(num_ranks - 1 - each.sources, num_ranks - 1 - each.destinations, each.blocks)
            for each in chain_rounds(num_ranks, num_blocks)
            if isinstance(each, Transfers)
        ),
    )
    return sequence("all_reduce", up, down)
