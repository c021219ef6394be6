"""Chimera: pairs of pipelines in opposite directions that fill each other's bubbles.

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
        return f"the number of ranks (D) must be even, got {num_ranks}"
    if num_ranks // 2 % num_pairs:
        return f"num_pairs must divide D/2 = {num_ranks // 2}, got {num_pairs}"
    if mode not in MODES:
        return f"mode must be one of {', '.join(MODES)}, got {mode!r}"
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
    """Pipes in both directions fill each other's bubbles: half of 1F1B's bubbles, with two copies of the weights.

    The modes for more micro-batches than ranks:

    - concatenation: units of D micro-batches in sequence. If backward passes take longer than forward passes, there are
      gaps between units, and it may be slower than 1F1B.
    - doubling: a forward pass processes two micro-batches, so it takes as long as the backward pass of one. Keeps twice
      as many activations.
    - halving: the same table with 2N micro-batches of half the size.
    - list: no units; list scheduling with B = 2F chooses the order.
    - zero-bubble: like list, with split backward passes.
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
    """Distribute micro-batches evenly over the pipes, each a contiguous range."""
    share, rest = divmod(len(micro_batches), num_pipes)
    ends = [0]
    for pipe in range(num_pipes):
        ends.append(ends[-1] + share + (pipe < rest))
    return [micro_batches[first:last] for first, last in pairwise(ends)]


def _concatenation(num_ranks: int, num_micro_batches: int, num_pairs: int) -> PipelineSchedule:
    """Return units of D micro-batches in sequence, 2D slots apart.

    A slot holds one forward or backward pass. Stage s runs micro-batch x of a pipe forward in slot 2x + s and backward
    in slot 2x + 2D - 1 - s, so the pipes of a unit never use the same slot of a rank.
    """
    placement = bidirectional(num_ranks, num_pairs)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(num_ranks)]
    for unit, first in enumerate(range(0, num_micro_batches, num_ranks)):
        micro_batches = range(first, min(first + num_ranks, num_micro_batches))
        for pipe, of_pipe in enumerate(_deal_alternating(micro_batches, num_pairs)):
            for index, micro_batch in enumerate(of_pipe):
                begin = 2 * index + 2 * num_ranks * unit
                for stage, rank in enumerate(placement.ranks[pipe]):
                    slots[rank].append((begin + stage, Action("F", stage, micro_batch, pipe=pipe)))
                    end = begin + 2 * num_ranks - 1 - stage
                    slots[rank].append((end, Action("B", stage, micro_batch, pipe=pipe)))
    rows = tuple(tuple(action for _, action in sorted(of_rank)) for of_rank in slots)
    return PipelineSchedule("chimera", placement, num_micro_batches, rows)


def _deal_alternating(micro_batches: range, num_pairs: int) -> Sequence[range]:
    """Distribute the micro-batches of a unit over the pipes; if they are too few, alternate between directions."""
    dealt = deal(micro_batches, 2 * num_pairs)
    return dealt[::2] + dealt[1::2]
