"""Exchanges with partners at doubling distances; other numbers of ranks are first folded into a power of two.

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

import numpy as np

from hocket.collectives.families._common import ceil_log2, floor_log2, need_power_of_two
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.collectives.transform import reverse
from hocket.sim import Link

_REFERENCE = "Thakur, Rabenseifner and Gropp, 2005"


def _folded(num_ranks: int, num_blocks: int, rounds: Rounds) -> Schedule:
    """Make an all_reduce on the first 2^k ranks; the others reduce into them before, and receive the result after."""
    inner = 1 << floor_log2(num_ranks)
    outer = np.arange(inner, num_ranks)[:, None]
    blocks = np.arange(num_blocks)

    def all_rounds() -> Rounds:
        yield Transfers(outer, outer - inner, blocks, reduces=True)
        yield from rounds
        yield Transfers(outer - inner, outer, blocks)

    return make_schedule("all_reduce", num_ranks, num_blocks, all_rounds())


def _fold_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return 0.0 if need_power_of_two(num_ranks) is None else 2 * link.message_s(nbytes) + link.reduce_s(nbytes)


def _recursive_doubling_s(link: Link, num_ranks: int, nbytes: float) -> float:
    round_s = link.message_s(nbytes) + link.reduce_s(nbytes)
    return floor_log2(num_ranks) * round_s + _fold_s(link, num_ranks, nbytes)


@algorithm(
    "all_reduce",
    "recursive_doubling",
    formula="⌊log2 P⌋(α + m(β + γ)), + 2(α + mβ) + mγ unless P is a power of two",
    seconds=_recursive_doubling_s,
    reference=_REFERENCE,
)
def recursive_doubling(num_ranks: int) -> Schedule:
    """In each round, partners exchange whole arrays."""
    levels = floor_log2(num_ranks)
    ranks = np.arange(1 << levels)
    return _folded(num_ranks, 1, (Transfers(ranks, ranks ^ (1 << level), 0, reduces=True) for level in range(levels)))


def _doubling_all_gather_rounds(num_ranks: int) -> Rounds:
    """Before the round of a level, a rank holds the blocks of all ranks that differ from it only in lower bits."""
    ranks = np.arange(num_ranks)[:, None]
    for level in range(floor_log2(num_ranks)):
        group = (ranks >> level << level) + np.arange(1 << level)
        yield Transfers(ranks, ranks ^ (1 << level), group)


def _all_gather_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return ceil_log2(num_ranks) * link.alpha_s + (num_ranks - 1) / num_ranks * nbytes * link.beta_s


@algorithm(
    "all_gather",
    "recursive_doubling",
    formula="qα + (P - 1)/P mβ",
    seconds=_all_gather_s,
    reference=_REFERENCE,
    restriction=need_power_of_two,
)
def doubling_all_gather(num_ranks: int) -> Schedule:
    """In each round, partners exchange all their blocks."""
    return make_schedule("all_gather", num_ranks, num_ranks, _doubling_all_gather_rounds(num_ranks))


def _reduce_scatter_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return _all_gather_s(link, num_ranks, nbytes) + (num_ranks - 1) / num_ranks * link.reduce_s(nbytes)


@algorithm(
    "reduce_scatter",
    "recursive_halving",
    formula="qα + (P - 1)/P m(β + γ)",
    seconds=_reduce_scatter_s,
    reference=_REFERENCE,
    restriction=need_power_of_two,
)
def recursive_halving(num_ranks: int) -> Schedule:
    """In each round, each partner sends the half that the other one needs."""
    return reverse(doubling_all_gather(num_ranks))


def _rabenseifner_s(link: Link, num_ranks: int, nbytes: float) -> float:
    inner = 1 << floor_log2(num_ranks)
    return (
        _reduce_scatter_s(link, inner, nbytes) + _all_gather_s(link, inner, nbytes) + _fold_s(link, num_ranks, nbytes)
    )


@algorithm(
    "all_reduce",
    "rabenseifner",
    formula="2⌊log2 P⌋α + (P' - 1)/P' m(2β + γ), + 2(α + mβ) + mγ unless P is a power of two, P' = 2^⌊log2 P⌋",
    seconds=_rabenseifner_s,
    reference=_REFERENCE,
)
def rabenseifner(num_ranks: int) -> Schedule:
    """Recursive halving, then recursive doubling."""
    inner = 1 << floor_log2(num_ranks)
    gather = list(_doubling_all_gather_rounds(inner))
    scatter = [
        Transfers(each.destinations, each.sources, each.blocks, reduces=True)
        for each in reversed(gather)
        if isinstance(each, Transfers)
    ]
    return _folded(num_ranks, inner, scatter + gather)


def _scan_s(link: Link, num_ranks: int, nbytes: float) -> float:
    return ceil_log2(num_ranks) * (link.message_s(nbytes) + link.reduce_s(nbytes))


@algorithm(
    "scan", "recursive_doubling", formula="q(α + m(β + γ))", seconds=_scan_s, exact=False, reference="Hillis and Steele"
)
def doubling_scan(num_ranks: int) -> Schedule:
    """In round k, rank r adds the sum over the 2^k ranks that end at r - 2^k."""
    ranks = np.arange(num_ranks)
    rounds = (
        Transfers(ranks[: num_ranks - (1 << level)], ranks[1 << level :], 0, reduces=True)
        for level in range(ceil_log2(num_ranks))
    )
    return make_schedule("scan", num_ranks, 1, rounds)


def _barrier_s(link: Link, num_ranks: int, nbytes: float = 0) -> float:
    return ceil_log2(num_ranks) * link.alpha_s


@algorithm(
    "barrier",
    "dissemination",
    formula="qα",
    seconds=_barrier_s,
    reference="Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988",
)
def dissemination(num_ranks: int) -> Schedule:
    """In round k, rank r notifies rank r + 2^k, also on behalf of all ranks that notified it before."""
    ranks = np.arange(num_ranks)
    rounds = (
        Transfers(ranks, (ranks + (1 << level)) % num_ranks, 0, reduces=True) for level in range(ceil_log2(num_ranks))
    )
    return make_schedule("barrier", num_ranks, 1, rounds)
