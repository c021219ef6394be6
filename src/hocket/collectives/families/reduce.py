"""Reduce algorithms: every reversed broadcast is a reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from hocket.collectives.families import chain, circulant, double_tree, scatter_all_gather, trees
from hocket.collectives.families._common import ceil_log2, need_power_of_two
from hocket.collectives.registry import Build, Seconds, algorithm
from hocket.collectives.schedule import Schedule
from hocket.collectives.transform import reverse
from hocket.sim import Link


def _reversed(build: Build) -> Build:
    @wraps(build)
    def build_reversed(num_ranks: int, **parameters: int) -> Schedule:
        return reverse(build(num_ranks, **parameters))

    return build_reversed


def _with_reductions(seconds: Seconds) -> Callable[..., float]:
    """Return an upper bound: each message is followed by its reduction."""

    @wraps(seconds)
    def bound(link: Link, num_ranks: int, nbytes: float, **parameters: int) -> float:
        return seconds(Link(link.alpha_s, link.beta_s + link.gamma_s), num_ranks, nbytes, **parameters)

    return bound


def _chain_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return chain.pipelined_reduction_s(link, num_ranks, nbytes, num_blocks)


def _binomial_s(link: Link, num_ranks: int, nbytes: float) -> float:
    step, reduction = link.message_s(nbytes), link.reduce_s(nbytes)
    levels = ceil_log2(num_ranks)
    if need_power_of_two(num_ranks) is None:
        return levels * (step + reduction)
    # The last subtree is not full, so the root receives its message during a reduction.
    return (levels - 1) * (step + reduction) + max(step, reduction)


def _register(
    name: str,
    build: Build,
    seconds: Seconds,
    formula: str = "at most the time of the broadcast with β + γ",
    exact: bool = False,
) -> None:
    algorithm(
        "reduce", name, formula=formula, seconds=seconds, exact=exact, reference=f"broadcast by {name}, reversed"
    )(_reversed(build))


_register(
    "binomial",
    trees.binomial,
    _binomial_s,
    "q(α + m(β + γ)), minus min(α + mβ, mγ) unless P is a power of two",
    exact=True,
)
_register("chain", chain.chain, _chain_s, "(P - 1)(α + (β + γ)m/n) + (n - 1) max(α + mβ/n, mγ/n)", exact=True)
for _name, _build, _seconds in (
    ("k_nomial", trees.k_nomial, trees.k_nomial_s),
    ("binary_tree", trees.binary_tree, trees.binary_tree_s),
    ("circulant", circulant.circulant, circulant.broadcast_s),
    ("double_tree", double_tree.double_tree, double_tree.broadcast_s),
    ("scatter_ring", scatter_all_gather.scatter_ring, scatter_all_gather.ring_s),
):
    _register(_name, _build, _with_reductions(_seconds))
