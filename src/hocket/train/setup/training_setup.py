"""How a training is laid out: a value that is made once and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.split_model import SplitModel
from hocket.train.setup.arrangement import Arrangement


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """How a training is laid out.

    Args:
        arrangement: of the ranks.
        schedule: of one replica.
        cuts: where stages begin in the model's layers, and the number of layers.
        split: the model in stages.
        costs: of the stages, where they were measured.
    """

    arrangement: Arrangement
    schedule: PipelineSchedule
    cuts: tuple[int, ...]
    split: SplitModel
    costs: CostModel | None = None

    def __str__(self) -> str:
        counts = [last - first for first, last in pairwise(self.cuts)]
        return (
            f"{self.arrangement.num_partitions} partitions x {self.arrangement.num_replicas} replicas, "
            f"{self.schedule.name}, {self.schedule.num_micro_batches} micro-batches, stages of "
            f"{', '.join(map(str, counts))} layers"
        )
