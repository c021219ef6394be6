"""Two binary trees, each for half of the blocks, in which no rank has children in both.

Sanders, Speck and Larsson Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. Edges
get one of two colours such that the edges by which a rank receives differ, and those by which it sends: in even rounds
one colour is used, in odd rounds the other, and every rank sends and receives at most one block a round.
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
    """Of nodes 1..n in order, in which all that have children are even: each one's parent; 0 stands above the top."""
    top = 1 << floor_log2(num_nodes)
    parents = {top: 0}
    below = [(top, top)]  # a node, and the distance to which its subtree reaches
    while below:
        node, reach = below.pop()
        left = right = reach // 2
        while right and node + right > num_nodes:  # cut off on the right
            right //= 2
        for child, distance in ((node - left, left), (node + right, right)):
            if distance:
                parents[child] = node
                below.append((child, distance))
    return parents


def _edges(num_ranks: int) -> list[_Edge]:
    """The second tree is the first one mirrored, or moved by one where mirroring would not change odd to even."""
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
    """For every edge the round in which it carries its tree's first block; later ones follow every other round."""
    edges = _edges(num_ranks)
    colours = _colours(edges)
    begins: dict[tuple[int, int], int] = {(0, 0): -1, (1, 0): -1}
    waiting, found = list(edges), []
    while waiting:
        later = []
        for edge in waiting:
            above = begins.get((edge.tree, edge.parent))
            if above is None:
                later.append(edge)
                continue
            number = above + 1
            number += (number - colours[edge]) % 2
            begins[edge.tree, edge.child] = number
            found.append((edge, number))
        waiting = later
    return tuple(found)


def _colours(edges: list[_Edge]) -> dict[_Edge, int]:
    """Every rank sends over two edges at most and receives over two: they form paths and even cycles."""
    by_sender: dict[int, list[_Edge]] = {}
    by_receiver: dict[int, list[_Edge]] = {}
    for edge in edges:
        by_sender.setdefault(edge.parent, []).append(edge)
        by_receiver.setdefault(edge.child, []).append(edge)
    colours: dict[_Edge, int] = {}

    def neighbours(edge: _Edge) -> list[_Edge]:
        return [each for each in by_sender[edge.parent] + by_receiver[edge.child] if each != edge]

    # The root's edge into the first tree begins with round 0.
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
    if num_ranks < 4:  # there each rank has one child at most
        yield from chain_rounds(num_ranks, num_blocks)
        return
    table = _first_rounds(num_ranks)
    trees, parents, children = (
        np.array([getattr(edge, name) for edge, _ in table]) for name in ("tree", "parent", "child")
    )
    begins = np.array([number for _, number in table])
    for number in range(int(begins.max()) + num_blocks):
        turn, rest = np.divmod(number - begins, 2)
        blocks = 2 * turn + trees
        now = (rest == 0) & (turn >= 0) & (blocks < num_blocks)
        yield Transfers(parents[now], children[now], blocks[now])


def _num_rounds(num_ranks: int, num_blocks: int) -> int:
    if num_ranks < 4:
        return num_blocks + num_ranks - 2 if num_ranks > 1 else 0
    last = [(num_blocks - 1 - edge.tree) // 2 for edge, _ in _first_rounds(num_ranks)]
    return max(
        begin + 2 * turn + 1 for (_, begin), turn in zip(_first_rounds(num_ranks), last, strict=True) if turn >= 0
    )


def broadcast_s(link: Link, num_ranks: int, nbytes: float, num_blocks: int = 8) -> float:
    return _num_rounds(num_ranks, num_blocks) * link.message_s(nbytes / num_blocks)


@algorithm(
    "broadcast",
    "double_tree",
    formula="(n + h)(α + mβ/n), h < 2⌈log2 P⌉ + 1 the round in which the deepest rank gets its first block",
    seconds=broadcast_s,
    reference=_REFERENCE,
)
def double_tree(num_ranks: int, num_blocks: int = 8) -> Schedule:
    """Even blocks go down one tree, odd blocks down the other; all ranks send and receive all the time."""
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
    """Up both trees, then down."""
    down = double_tree(num_ranks, num_blocks)
    return sequence("all_reduce", reverse(down), down)
