"""Costs of the actions of a schedule: seconds, message bytes and memory bytes."""

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

# The usual costs to compare schedules: a backward pass takes twice as long as a forward pass, and each half of it as
# long as a forward pass.
UNIT_SECONDS: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes of actions, for each stage; a single number applies to all stages.

    Args:
        seconds: seconds per micro-batch, by name of the cost: F, B, I, W, R, STEP, SYNC_START and those of other
            kinds. The default of B is I + W, that of R is F, and all others are 0.
        overlapped_s: seconds of overlapping actions, by the names of their costs joined with &, such as "F&B"; their
            sum if not given.
        fabric: network between the ranks; None: messages take no time.
        message_nbytes: output of a stage for one micro-batch; its gradient has the same size.
        stash_nbytes: bytes kept per micro-batch, by name of the stash: activation, input, output_gradient.
        weight_nbytes: bytes of one copy of a stage, including its gradients and optimizer state.
        gradient_nbytes: gradients of one copy of a stage, summed over all copies.
        num_replicas: copies of the whole pipeline, in addition to copies of stages within it.

    Raises:
        InvalidArgument: a value is negative, not finite, or not a number.

    Examples:
        >>> link = hk.sim.Link.of(10, 10)  # 10 us, 10 GB/s
        >>> costs = hk.pipeline.CostModel(seconds={"F": 1.0, "B": 2.0}, fabric=link, message_nbytes=1e9)
        >>> timeline = hk.pipeline.simulate(hk.pipeline.build("1f1b", 2, 4), costs)
        >>> round(timeline.makespan_s, 2)  # 15 s without messages
        15.4
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
                raise InvalidArgument(f"{name} must be a number or one number per stage, got {values!r}") from None
            wrong = array[~((array >= 0) & np.isfinite(array))]
            if wrong.size or array.ndim > 1:
                raise InvalidArgument(f"{name} must be 0 or more, got {wrong[0] if wrong.size else values}")
        if self.num_replicas < 1:
            raise InvalidArgument(f"num_replicas must be 1 or more, got {self.num_replicas}")

    def seconds_of(self, cost: str, num_stages: int) -> NDArray[np.float64]:
        """Return the seconds per micro-batch of each stage."""
        if cost in self.seconds:
            return per_stage(self.seconds[cost], num_stages, f"seconds of {cost}")
        parts = next((kind.instead for kind in kinds().values() if kind.cost == cost and kind.instead), ())
        return sum((self.seconds_of(part, num_stages) for part in parts), np.zeros(num_stages))

    def stash_nbytes_of(self, stash: str, num_stages: int) -> NDArray[np.float64]:
        """Return the bytes of a stash per micro-batch, for each stage."""
        return per_stage(self.stash_nbytes.get(stash, 0.0), num_stages, f"stash_nbytes of {stash}")

    def network(self) -> Fabric | None:
        """Return the network between the ranks, or None if messages take no time."""
        return Uniform(self.fabric) if isinstance(self.fabric, Link) else self.fabric

    def all_reduce_s(self, nbytes: float, ranks: Sequence[int], num_ranks: int) -> float:
        """Return the seconds of an all-reduce of gradients over ranks and their replicas, over their slowest link.

        Rank r of replica i is rank r + i D of all ranks. The time is 2 log2(r) α + 2 (r - 1)/r nβ, that of
        reduce_scatter and all_gather by recursive halving and doubling (arXiv 2107.06925, section 3.4).
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
    """Return one value per stage.

    Raises:
        InvalidArgument: the number of values is not the number of stages.
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        return np.full(num_stages, float(array))
    if array.shape != (num_stages,):
        raise InvalidArgument(f"{what} must have one value for each of {num_stages} stages, got {array.size} values")
    return array
