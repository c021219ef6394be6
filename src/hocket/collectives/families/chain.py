"""Pipelines along a chain of ranks: broadcast (over one or several chains), scan, and all_reduce in fixed order.

The pipelined chain is that of Awan, Chu, Subramoni and Panda, "Optimized Broadcast for Deep Learning Workloads on
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
        active = (blocks >= 0) & (blocks < num_blocks)
        yield Transfers(senders[active], senders[active] + 1, blocks[active], reduces=reduces)


def _chain_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return (num_blocks + num_ranks - 2) * link.message_s(nbytes / num_blocks) if num_ranks > 1 else 0.0


@algorithm(
    "broadcast", "chain", formula="(n + P - 2)(α + mβ/n)", seconds=_chain_s, reference="arXiv 1707.09414, section 4"
)
def chain(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Blocks are pipelined along the ranks: rank r receives block b + 1 while it sends block b."""
    return make_schedule("broadcast", num_ranks, num_blocks, chain_rounds(num_ranks, num_blocks))


def _multi_chain_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8, num_chains: int = 2) -> float:
    if num_ranks == 1:
        return 0.0
    num_chains = min(num_chains, num_ranks - 1)
    rounds = num_blocks * num_chains + (num_ranks - 1) // num_chains - 1
    return rounds * link.message_s(nbytes / num_blocks)


def _multichain_rounds(num_ranks: int, num_blocks: int, num_chains: int) -> Rounds:
    ranks = np.arange(1, num_ranks)
    chains, positions = (ranks - 1) % num_chains, (ranks - 1) // num_chains
    predecessors = np.maximum(ranks - num_chains, 0)
    last = (num_blocks - 1) * num_chains + int((chains + positions).max(initial=-1))
    for number in range(last + 1):
        blocks, rest = np.divmod(number - chains - positions, num_chains)
        active = (rest == 0) & (blocks >= 0) & (blocks < num_blocks)
        yield Transfers(predecessors[active], ranks[active], blocks[active])


@algorithm(
    "broadcast",
    "multi_chain",
    formula="(nF + ⌊(P - 1)/F⌋ - 1)(α + mβ/n), F chains",
    seconds=_multi_chain_s,
    reference="Open MPI, coll_base_topo.c, chain with fan-out",
)
def multi_chain(num_ranks: int, num_blocks: int = 8, num_chains: int = 2) -> Schedule:
    """The root sends to F chains in turn: F times the traffic at the root, chains of 1/F of the length."""
    num_chains = max(1, min(num_chains, num_ranks - 1))
    return make_schedule("broadcast", num_ranks, num_blocks, _multichain_rounds(num_ranks, num_blocks, num_chains))


def pipelined_reduction_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int) -> float:
    """Return the seconds of a pipelined reduction along all ranks, block by block."""
    step, reduction = link.message_s(nbytes / num_blocks), link.reduce_s(nbytes / num_blocks)
    return (num_ranks - 1) * (step + reduction) + (num_blocks - 1) * max(step, reduction) if num_ranks > 1 else 0.0


def _scan_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return pipelined_reduction_s(link, num_ranks, nbytes, num_blocks)


@algorithm("scan", "chain", formula="(P - 1)(α + (β + γ)m/n) + (n - 1) max(α + mβ/n, mγ/n)", seconds=_scan_s)
def chain_scan(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Every rank adds the partial sum of the previous rank and sends the result to the next."""
    return make_schedule("scan", num_ranks, num_blocks, chain_rounds(num_ranks, num_blocks, reduces=True))


def _fixed_order_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    if num_ranks == 1:
        return 0.0
    step = link.message_s(nbytes / num_blocks)
    up = pipelined_reduction_s(link, num_ranks, nbytes, num_blocks)
    last_block_down = up + (num_ranks - 1) * step
    if num_ranks == 2:
        return last_block_down
    # The second to last rank sends all blocks up before it sends the first one down.
    second_to_last = pipelined_reduction_s(link, num_ranks - 1, nbytes, num_blocks) + step
    return max(last_block_down, second_to_last + (num_blocks + num_ranks - 3) * step)


@algorithm(
    "all_reduce",
    "fixed_order",
    formula="max(T(P) + (P - 1)t, T(P - 1) + (n + P - 2)t), T the time of scan by chain, t = α + mβ/n",
    seconds=_fixed_order_s,
)
def fixed_order(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """((x0 + x1) + x2) + ...: every element is reduced in rank order, for any division into blocks.

    The result is equal to a loop over the ranks, in every run and for every number of blocks.
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
