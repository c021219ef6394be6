"""The placement of stages on ranks, for each pipeline of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Placement:
    """The rank of every stage, for each pipe.

    A schedule with several pipes has one copy of every stage per pipe, each with all weights of the stage. The pipes
    process different micro-batches, and their gradients are summed at the end of a step.

    Args:
        ranks: for each pipe, the rank of every stage.

    Raises:
        InvalidArgument: the pipes have different numbers of stages, or a rank has no stage.

    Examples:
        >>> placement = hk.pipeline.Placement(((0, 1, 2), (2, 1, 0)))
        >>> placement.num_ranks, placement.num_stages, placement.num_pipes
        (3, 3, 2)
        >>> placement.stages_of(0)
        [(0, 0), (1, 2)]
    """

    ranks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.ranks or not self.ranks[0]:
            raise InvalidArgument(f"a placement needs at least one pipe with at least one stage, got {self.ranks!r}")
        for pipe, ranks in enumerate(self.ranks):
            if len(ranks) != len(self.ranks[0]):
                raise InvalidArgument(
                    f"all pipes need equally many stages: pipe {pipe} has {len(ranks)}, pipe 0 {len(self.ranks[0])}"
                )
        used = {rank for ranks in self.ranks for rank in ranks}
        if used != set(range(len(used))):
            absent = next(rank for rank in range(len(used)) if rank not in used)
            raise InvalidArgument(f"ranks must be numbered from 0 without gaps, but rank {absent} has no stage")

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
        """Return (pipe, stage) of every stage on a rank."""
        return [
            (pipe, stage)
            for pipe, ranks in enumerate(self.ranks)
            for stage, holder in enumerate(ranks)
            if holder == rank
        ]


def linear(num_ranks: int) -> Placement:
    """Place stage s on rank s.

    Examples:
        >>> hk.pipeline.linear(3).ranks
        ((0, 1, 2),)
    """
    return Placement((tuple(range(num_ranks)),))


def looped(num_ranks: int, num_loops: int) -> Placement:
    """Place several stages on each rank: stage s on rank s mod D.

    Examples:
        >>> hk.pipeline.looped(num_ranks=3, num_loops=2).ranks
        ((0, 1, 2, 0, 1, 2),)
    """
    return Placement((tuple(range(num_ranks)) * num_loops,))


def zigzag(num_ranks: int, num_turns: int) -> Placement:
    """Place stages down and up the ranks in turn: two turns are a V, four a W.

    Examples:
        >>> hk.pipeline.zigzag(num_ranks=3, num_turns=2).ranks
        ((0, 1, 2, 2, 1, 0),)
    """
    down = tuple(range(num_ranks))
    return Placement((tuple(rank for turn in range(num_turns) for rank in (down, down[::-1])[turn % 2]),))


def bidirectional(num_ranks: int, num_pairs: int = 1) -> Placement:
    """Place pairs of pipes in opposite directions, with the first stages of the pairs evenly spaced.

    Pipes 0 to f - 1 go down: stage s of pipe i on rank (s + i D/f) mod D; pipes f to 2f - 1 go up: stage s of pipe
    f + i on rank (D - 1 - s + i D/f) mod D. Every rank holds 2f different stages (arXiv 2107.06925, section 3.6).

    Args:
        num_ranks: D, an even number.
        num_pairs: f, a divisor of D/2.

    Raises:
        InvalidArgument: `num_ranks` is odd, or `num_pairs` does not divide half of it.

    Examples:
        >>> hk.pipeline.bidirectional(4).ranks
        ((0, 1, 2, 3), (3, 2, 1, 0))
    """
    if num_ranks < 2 or num_ranks % 2:
        raise InvalidArgument(f"pipes in both directions need an even number of ranks, got {num_ranks}")
    if num_pairs < 1 or num_ranks // 2 % num_pairs:
        raise InvalidArgument(f"num_pairs must divide half the number of ranks, {num_ranks // 2}; got {num_pairs}")
    offsets = [pair * num_ranks // num_pairs for pair in range(num_pairs)]
    downs = [tuple((stage + offset) % num_ranks for stage in range(num_ranks)) for offset in offsets]
    ups = [tuple((num_ranks - 1 - stage + offset) % num_ranks for stage in range(num_ranks)) for offset in offsets]
    return Placement((*downs, *ups))


def custom(ranks: Sequence[int] | Sequence[Sequence[int]]) -> Placement:
    """Make a placement from ranks by stage, or by pipe and stage.

    Raises:
        InvalidArgument: the ranks are not integers, or not a valid placement.

    Examples:
        >>> hk.pipeline.custom([0, 1, 1, 0])
        Placement(ranks=((0, 1, 1, 0),))
    """
    try:
        rows: Any = [ranks] if all(isinstance(each, int) for each in ranks) else ranks
        table = tuple(tuple(int(rank) for rank in row) for row in rows)
    except (TypeError, ValueError):
        raise InvalidArgument(f"a placement must be ranks by stage, or by pipe and stage, got {ranks!r}") from None
    return Placement(table)
