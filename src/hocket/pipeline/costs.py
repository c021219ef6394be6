"""What the actions of a schedule cost: seconds, bytes on the way, bytes in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.kind import kinds
from hocket.sim import Fabric, Link, Uniform

PerStage: TypeAlias = float | Sequence[float]

# The costs by which schedules are usually compared: a backward pass takes twice its forward pass, and either half of
# it as much as that.
UNIT_SECONDS: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes by stage; a number stands for all stages alike.

    Args:
        seconds: of one micro-batch, by the cost's name: F, B, I, W, R, STEP, SYNC_START and those of further kinds. B
            is I and W if it is not given, and R is F; all others are 0.
        overlapped_s: of actions that are done together, by their costs' names with & between them, such as "F&B";
            their sum if not given.
        fabric: what connects the ranks; None: messages take no time.
        message_nbytes: what leaves a stage, for one micro-batch; the gradient that comes back is as large.
        stash_nbytes: of one micro-batch, by the stash's name: activation, input, output_gradient.
        weight_nbytes: of one copy of a stage, with its gradients and the optimizer's state, as long as it is held.
        gradient_nbytes: of one copy of a stage, which are summed over its copies.
        num_replicas: copies of the whole pipeline, beside those of stages within it.
    """

    seconds: Mapping[str, PerStage] = field(default_factory=lambda: dict(UNIT_SECONDS))
    overlapped_s: Mapping[str, PerStage] = field(default_factory=dict)
    fabric: Fabric | Link | None = None
    message_nbytes: PerStage = 0.0
    stash_nbytes: Mapping[str, PerStage] = field(default_factory=lambda: {"activation": 1.0})
    weight_nbytes: PerStage = 0.0
    gradient_nbytes: PerStage = 0.0
    num_replicas: int = 1

    def __post_init__(self) -> None:
        for name, values in (
            *((f"seconds of {key}", value) for key, value in (*self.seconds.items(), *self.overlapped_s.items())),
            *((f"stash_nbytes of {key}", value) for key, value in self.stash_nbytes.items()),
            ("message_nbytes", self.message_nbytes),
            ("weight_nbytes", self.weight_nbytes),
            ("gradient_nbytes", self.gradient_nbytes),
        ):
            try:
                array = np.atleast_1d(np.asarray(values, np.float64))
            except (TypeError, ValueError):
                raise InvalidArgument(f"{name} is a number, or one for every stage, not {values!r}") from None
            wrong = array[~((array >= 0) & np.isfinite(array))]
            if wrong.size or array.ndim > 1:
                raise InvalidArgument(f"{name} is 0 or more, not {wrong[0] if wrong.size else values}")
        if self.num_replicas < 1:
            raise InvalidArgument(f"num_replicas is 1 or more, not {self.num_replicas}")

    def seconds_of(self, cost: str, num_stages: int) -> NDArray[np.float64]:
        """Return the seconds of one micro-batch, of every stage."""
        if cost in self.seconds:
            return per_stage(self.seconds[cost], num_stages, f"seconds of {cost}")
        parts = next((kind.instead for kind in kinds().values() if kind.cost == cost and kind.instead), ())
        return sum((self.seconds_of(part, num_stages) for part in parts), np.zeros(num_stages))

    def stash_nbytes_of(self, stash: str, num_stages: int) -> NDArray[np.float64]:
        """Return what a stash takes for one micro-batch, of every stage."""
        return per_stage(self.stash_nbytes.get(stash, 0.0), num_stages, f"stash_nbytes of {stash}")

    def network(self) -> Fabric | None:
        """Return what connects the ranks, or None where messages take no time."""
        return Uniform(self.fabric) if isinstance(self.fabric, Link) else self.fabric

    def all_reduce_s(self, nbytes: float, ranks: Sequence[int], num_ranks: int) -> float:
        """Return the seconds of summing gradients over ranks and their replicas, over the slowest of their links.

        Replicas of a pipeline follow one another: rank r of the second one is rank r + D of all.

        2 log2(r) α + 2 (r - 1)/r nβ, as reduce_scatter and all_gather by halving and doubling take it
        (arXiv 2107.06925, section 3.4).
        """
        num_copies = len(ranks) * self.num_replicas
        fabric = self.network()
        if num_copies == 1 or fabric is None:
            return 0.0
        others = [rank + copy * num_ranks for copy in range(self.num_replicas) for rank in ranks]
        alpha_s = max(fabric.message_cost(ranks[0], other, 0).latency_s for other in others)
        whole_s = max(fabric.message_cost(ranks[0], other, int(nbytes)).occupied_s for other in others)
        return 2 * math.log2(num_copies) * alpha_s + 2 * (num_copies - 1) / num_copies * whole_s


def per_stage(values: PerStage, num_stages: int, what: str) -> NDArray[np.float64]:
    """Return one value for every stage.

    Raises:
        InvalidArgument: there are more or fewer values than stages.
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        return np.full(num_stages, float(array))
    if array.shape != (num_stages,):
        raise InvalidArgument(f"{what}: there are {num_stages} stages, and {array.size} values")
    return array
