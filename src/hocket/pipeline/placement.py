"""Which rank holds which stage, in each pipeline of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Placement:
    """Ranks by pipe and stage.

    A schedule of several pipes has as many copies of every stage, each with all of its weights: the pipes take
    different micro-batches, and their gradients are summed at the end of a step.

    Args:
        ranks: of every pipe, the rank of each of its stages.
    """

    ranks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.ranks or not self.ranks[0]:
            raise InvalidArgument("a placement has one pipe or more, of one stage or more")
        for pipe, ranks in enumerate(self.ranks):
            if len(ranks) != len(self.ranks[0]):
                raise InvalidArgument(
                    f"all pipes have the same stages: pipe {pipe} has {len(ranks)}, pipe 0 {len(self.ranks[0])}"
                )
        used = {rank for ranks in self.ranks for rank in ranks}
        if used != set(range(len(used))):
            absent = next(rank for rank in range(len(used)) if rank not in used)
            raise InvalidArgument(f"ranks are numbered from 0 on, and each has a stage: rank {absent} has none")

    @property
    def num_pipes(self) -> int:
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def num_ranks(self) -> int:
        return 1 + max(max(ranks) for ranks in self.ranks)

    def stages_of(self, rank: int) -> list[tuple[int, int]]:
        """Return (pipe, stage) of all that a rank holds."""
        return [
            (pipe, stage)
            for pipe, ranks in enumerate(self.ranks)
            for stage, holder in enumerate(ranks)
            if holder == rank
        ]


def linear(num_ranks: int) -> Placement:
    """Stage s on rank s."""
    return Placement((tuple(range(num_ranks)),))


def looped(num_ranks: int, num_loops: int) -> Placement:
    """Several stages a rank: stage s on rank s mod D."""
    return Placement((tuple(range(num_ranks)) * num_loops,))


def zigzag(num_ranks: int, num_turns: int) -> Placement:
    """Down the ranks, and up again, so many times: two turns are a V, four a W."""
    down = tuple(range(num_ranks))
    return Placement((tuple(rank for turn in range(num_turns) for rank in (down, down[::-1])[turn % 2]),))


def bidirectional(num_ranks: int, num_pairs: int = 1) -> Placement:
    """Pairs of pipes in opposite directions, each pair begun as far as can be from the others.

    Pipes 0 to f - 1 go down: stage s of pipe i on rank (s + i D/f) mod D; pipes f to 2f - 1 go up: stage s of pipe
    f + i on rank (D - 1 - s + i D/f) mod D. Every rank holds 2f different stages (arXiv 2107.06925, section 3.6).

    Args:
        num_ranks: D, even.
        num_pairs: f, which divides D/2.
    """
    if num_ranks < 2 or num_ranks % 2:
        raise InvalidArgument(f"pipes in both directions need an even number of ranks, not {num_ranks}")
    if num_pairs < 1 or num_ranks // 2 % num_pairs:
        raise InvalidArgument(f"num_pairs divides half the number of ranks, {num_ranks // 2}; {num_pairs} does not")
    offsets = [pair * num_ranks // num_pairs for pair in range(num_pairs)]
    downs = [tuple((stage + offset) % num_ranks for stage in range(num_ranks)) for offset in offsets]
    ups = [tuple((num_ranks - 1 - stage + offset) % num_ranks for stage in range(num_ranks)) for offset in offsets]
    return Placement((*downs, *ups))


def custom(ranks: Sequence[int] | Sequence[Sequence[int]]) -> Placement:
    """Return a placement of one's own: ranks by stage, or by pipe and stage."""
    try:
        rows: Any = [ranks] if all(isinstance(each, int) for each in ranks) else ranks
        table = tuple(tuple(int(rank) for rank in row) for row in rows)
    except (TypeError, ValueError):
        raise InvalidArgument(f"a placement is ranks by stage, or by pipe and stage, not {ranks!r}") from None
    return Placement(table)
