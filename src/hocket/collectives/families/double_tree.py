"""Two binary trees, each for half of the blocks; no rank has children in both trees.

Sanders, Speck and Larsson Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. Each
edge has one of two colours. The two edges over which a rank receives have different colours, and so do the two edges
over which it sends. Even rounds use one colour, odd rounds the other, so every rank sends and receives at most one
block per round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hocket.collectives.families._common import floor_log2
from hocket.collectives.families.chain import chain_rounds
from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Rounds, Schedule, Transfers, make_schedule
from hocket.collectives.transform import reverse, sequence
from hocket.sim import Link

_REFERENCE = "Sanders, Speck and Larsson Träff, 2009"


@dataclass(frozen=True)
class _Edge:
    tree: int
    parent: int
    child: int


def _inorder_parents(num_nodes: int) -> dict[int, int]:
    """Return the parents of nodes 1..n of an in-order tree whose inner nodes are even; the parent of the top is 0."""
    top = 1 << floor_log2(num_nodes)
    parents = {top: 0}
    pending = [(top, top)]  # a node, and the reach of its subtree
    while pending:
        node, reach = pending.pop()
        left = right = reach // 2
        while right and node + right > num_nodes:  # truncated on the right
            right //= 2
        for child, distance in ((node - left, left), (node + right, right)):
            if distance:
                parents[child] = node
                pending.append((child, distance))
    return parents


def _edges(num_ranks: int) -> list[_Edge]:
    """Return the edges of both trees; the second is mirrored, or shifted by one if mirroring keeps odd nodes odd."""
    num_nodes = num_ranks - 1
    first = _inorder_parents(num_nodes)

    def other(node: int) -> int:
        if node == 0:
            return 0
        return num_nodes + 1 - node if num_nodes % 2 == 0 else node % num_nodes + 1

    edges = [_Edge(0, parent, child) for child, parent in first.items()]
    return edges + [_Edge(1, other(parent), other(child)) for child, parent in first.items()]


@lru_cache(maxsize=64)
def _first_rounds(num_ranks: int) -> tuple[tuple[_Edge, int], ...]:
    """Return for every edge the round of its tree's first block; later blocks follow every other round."""
    edges = _edges(num_ranks)
    colours = _colours(edges)
    begins: dict[tuple[int, int], int] = {(0, 0): -1, (1, 0): -1}
    pending, first_rounds = list(edges), []
    while pending:
        deferred = []
        for edge in pending:
            parent_round = begins.get((edge.tree, edge.parent))
            if parent_round is None:
                deferred.append(edge)
                continue
            number = parent_round + 1
            number += (number - colours[edge]) % 2
            begins[edge.tree, edge.child] = number
            first_rounds.append((edge, number))
        pending = deferred
    return tuple(first_rounds)


def _colours(edges: list[_Edge]) -> dict[_Edge, int]:
    """Colour the edges: a rank sends and receives over at most two, so conflicts form paths and even cycles."""
    by_sender: dict[int, list[_Edge]] = {}
    by_receiver: dict[int, list[_Edge]] = {}
    for edge in edges:
        by_sender.setdefault(edge.parent, []).append(edge)
        by_receiver.setdefault(edge.child, []).append(edge)
    colours: dict[_Edge, int] = {}

    def neighbours(edge: _Edge) -> list[_Edge]:
        return [each for each in by_sender[edge.parent] + by_receiver[edge.child] if each != edge]

    # The root's edge into the first tree gets the colour of round 0.
    for start in sorted(edges, key=lambda edge: (edge.parent, edge.tree)):
        if start in colours:
            continue
        colours[start] = 0
        stack = [start]
        while stack:
            edge = stack.pop()
            for each in neighbours(edge):
                if each not in colours:
                    colours[each] = 1 - colours[edge]
                    stack.append(each)
    return colours


def _rounds(num_ranks: int, num_blocks: int) -> Rounds:
    if num_ranks < 4:  # each rank has at most one child
        yield from chain_rounds(num_ranks, num_blocks)
        return
    table = _first_rounds(num_ranks)
    trees, parents, children = (
        np.array([getattr(edge, name) for edge, _ in table]) for name in ("tree", "parent", "child")
    )
    begins = np.array([number for _, number in table])
    for number in range(int(begins.max()) + num_blocks):
        index, rest = np.divmod(number - begins, 2)
        blocks = 2 * index + trees
        active = (rest == 0) & (index >= 0) & (blocks < num_blocks)
        yield Transfers(parents[active], children[active], blocks[active])


def _num_rounds(num_ranks: int, num_blocks: int) -> int:
    if num_ranks < 4:
        return num_blocks + num_ranks - 2 if num_ranks > 1 else 0
    last = [(num_blocks - 1 - edge.tree) // 2 for edge, _ in _first_rounds(num_ranks)]
    return max(
        begin + 2 * index + 1 for (_, begin), index in zip(_first_rounds(num_ranks), last, strict=True) if index >= 0
    )


def broadcast_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return _num_rounds(num_ranks, num_blocks) * link.message_s(nbytes / num_blocks)


@algorithm(
    "broadcast",
    "double_tree",
    formula="(n + h)(α + mβ/n), h < 2⌈log2 P⌉ + 1 the round of the deepest rank's first block",
    seconds=broadcast_s,
    reference=_REFERENCE,
)
def double_tree(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Even blocks use one tree, odd blocks the other, so that all ranks send and receive in every round."""
    return make_schedule("broadcast", num_ranks, num_blocks, _rounds(num_ranks, num_blocks))


def _all_reduce_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    rounds = _num_rounds(num_ranks, num_blocks)
    return rounds * (2 * link.message_s(nbytes / num_blocks) + link.reduce_s(nbytes / num_blocks))


@algorithm(
    "all_reduce",
    "double_tree",
    formula="(n + h)(2(α + mβ/n) + mγ/n)",
    seconds=_all_reduce_s,
    exact=False,
    reference=_REFERENCE,
)
def double_tree_all_reduce(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Reduce up both trees, then broadcast down."""
    down = double_tree(num_ranks, num_blocks)
    return sequence("all_reduce", reverse(down), down)
