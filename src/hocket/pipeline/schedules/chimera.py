"""Chimera: pairs of pipelines in opposite directions, whose bubbles are each other's work.

Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines", SC 2021
(arXiv 2107.06925), sections 3.1 and 3.5; with 2f pipes 3.6.
"""

from collections.abc import Sequence
from itertools import pairwise

from hocket.pipeline.action import Action
from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.placement import bidirectional
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule

MODES = ("concatenation", "doubling", "halving", "list", "zero-bubble")


def _restriction(num_ranks: int, num_micro_batches: int, *, num_pairs: int, mode: str) -> str | None:
    if num_ranks % 2:
        return "the number of ranks (D) has to be even"
    if num_ranks // 2 % num_pairs:
        return f"num_pairs has to divide D/2, which is {num_ranks // 2}"
    if mode not in MODES:
        return f"mode is one of {', '.join(MODES)}, not {mode!r}"
    return None


@recipe(
    "chimera",
    bubble="(D - 2f)/(2fN + D - 2f), f pairs of pipes, where F = B and N = D",
    reference="Li and Hoefler, arXiv 2107.06925",
    restriction=_restriction,
    choices={"num_pairs": (2, 4, 8), "mode": ("doubling", "list", "zero-bubble")},
)
def chimera(
    num_ranks: int, num_micro_batches: int, num_pairs: int = 1, mode: str = "concatenation"
) -> PipelineSchedule:
    """Pipes in both directions fill each other's bubbles: half of 1F1B's, for two copies of the weights.

    More micro-batches than ranks, by mode:

    - concatenation: one unit of D micro-batches after the other. Where a backward pass takes longer than a forward
      pass, this leaves gaps between units, and may be slower than 1F1B.
    - doubling: a forward pass takes two micro-batches, so that it lasts as long as the backward pass of one. Twice
      as many activations are kept.
    - halving: the same table for micro-batches that are halved in backward passes: it has 2N of them, each half as
      large.
    - list: units are given up, and the table is searched for by list scheduling with B = 2F.
    - zero-bubble: the same with backward passes in two parts.
    """
    placement = bidirectional(num_ranks, num_pairs)
    if mode == "halving":
        num_micro_batches *= 2
    if mode == "concatenation":
        return _concatenation(num_ranks, num_micro_batches, num_pairs)
    micro_batches = [list(each) for each in deal(range(num_micro_batches), placement.num_pipes)]
    width = 2 if mode in ("doubling", "halving") else 1
    rule = Rule(splits_backward=mode == "zero-bubble", forward_width=width)
    return search_list_schedule(placement, micro_batches, rule=rule)


def deal(micro_batches: range, num_pipes: int) -> list[range]:
    """Return what each pipe gets: as many as the others, or one more, each a run of them."""
    share, more = divmod(len(micro_batches), num_pipes)
    ends = [0]
    for pipe in range(num_pipes):
        ends.append(ends[-1] + share + (pipe < more))
    return [micro_batches[first:last] for first, last in pairwise(ends)]


def _concatenation(num_ranks: int, num_micro_batches: int, num_pairs: int) -> PipelineSchedule:
    """In slots of a forward or a backward pass, micro-batch x of a pipe is at stage s forward in slot 2x + s, and
    backward in slot 2x + 2D - 1 - s: no two pipes of a unit of D micro-batches meet. Units are 2D slots apart."""
    placement = bidirectional(num_ranks, num_pairs)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(num_ranks)]
    for unit, first in enumerate(range(0, num_micro_batches, num_ranks)):
        there = range(first, min(first + num_ranks, num_micro_batches))
        for pipe, of_pipe in enumerate(_dealt_both_ways(there, num_pairs)):
            for turn, micro_batch in enumerate(of_pipe):
                begin = 2 * turn + 2 * num_ranks * unit
                for stage, rank in enumerate(placement.ranks[pipe]):
                    slots[rank].append((begin + stage, Action("F", stage, micro_batch, pipe=pipe)))
                    end = begin + 2 * num_ranks - 1 - stage
                    slots[rank].append((end, Action("B", stage, micro_batch, pipe=pipe)))
    rows = tuple(tuple(action for _, action in sorted(of_rank)) for of_rank in slots)
    return PipelineSchedule("chimera", placement, num_micro_batches, rows)


def _dealt_both_ways(micro_batches: range, num_pairs: int) -> Sequence[range]:
    """What each pipe gets of a unit: where there are too few for all, pipes of both directions get one in turn."""
    dealt = deal(micro_batches, 2 * num_pairs)
    return dealt[::2] + dealt[1::2]
