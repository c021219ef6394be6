"""The set-up of a training: a value that is made once and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.split_model import SplitModel
from hocket.train.setup.arrangement import Arrangement


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """The set-up of a training.

    Args:
        arrangement: numbers of partitions and replicas.
        schedule: schedule of one replica.
        cuts: index of the first layer of each stage, and the number of layers at the end.
        split: the model in stages.
        costs: costs of the stages, if they were measured.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)))
        >>> arrangement = hk.train.Arrangement(num_partitions=2, num_replicas=1)
        >>> schedule = hk.train.make_schedule(arrangement, batch_size=8)
        >>> print(hk.train.TrainingSetup(arrangement, schedule, (0, 1, 2), graph.split([0, 1, 2])))
        2 partitions x 1 replicas, 1f1b, 8 micro-batches, stages of 1, 1 layers
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
