"""What a training does on which ranks: partitions, replicas, schedule and cuts. Nothing is sent to settle it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hocket.errors import InvalidArgument, InvalidModel
from hocket.pipeline.costs import CostModel
from hocket.pipeline.partition import bottleneck_partition
from hocket.pipeline.passes.recompute import recompute as recompute_pass
from hocket.pipeline.registry import find_recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.arrangement import Arrangement, arrange
from hocket.train.balance import parameter_counts
from hocket.train.layer_graph import LayerGraph, cuts_of
from hocket.train.split_model import SplitModel

_MICRO_BATCHES_PER_RANK = 4


@dataclass(frozen=True, eq=False)
class Plan:
    """A training, settled.

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


def plan_schedule(
    arrangement: Arrangement,
    batch_size: int | None,
    *,
    schedule: str | PipelineSchedule = "1f1b",
    options: Mapping[str, Any] | None = None,
    num_micro_batches: int | None = None,
    recompute: bool = False,
) -> PipelineSchedule:
    """Build the table of one replica, or check one that is given.

    Raises:
        InvalidArgument: the schedule cannot do so many ranks or micro-batches, or the batch cannot be cut so.
    """
    replicas = arrangement.num_replicas
    if isinstance(schedule, PipelineSchedule):
        if schedule.num_ranks != arrangement.num_partitions:
            raise InvalidArgument(
                f"the table is for {schedule.num_ranks} ranks; there are {arrangement.num_partitions} partitions"
            )
        if options or (num_micro_batches or schedule.num_micro_batches) != schedule.num_micro_batches:
            raise InvalidArgument("a table has its micro-batches and options already")
        made = schedule
    else:
        if num_micro_batches is None:
            wanted = _MICRO_BATCHES_PER_RANK * arrangement.num_partitions if arrangement.num_partitions > 1 else 1
            num_micro_batches = max(1, min(wanted, (batch_size or wanted * replicas) // replicas))
        made = find_recipe(schedule).schedule(arrangement.num_partitions, num_micro_batches, **(options or {}))
    if batch_size is not None and batch_size < replicas * made.num_micro_batches:
        raise InvalidArgument(
            f"a batch of {batch_size} samples cannot be cut into {replicas} x {made.num_micro_batches} micro-batches: "
            "choose a larger batch_size, or fewer micro-batches"
        )
    return recompute_pass(made) if recompute else made


def plan_training(
    graph: LayerGraph,
    arrangement: Arrangement,
    schedule: PipelineSchedule,
    *,
    layers_per_partition: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
) -> Plan:
    """Cut a model for a schedule.

    Args:
        graph: of the model.
        arrangement, schedule: of the ranks.
        layers_per_partition: how many layers every stage has, in the order of stages.
        costs: of every layer; stages are made alike in their sums. None: the parameters of layers.

    Raises:
        InvalidArgument: the numbers do not fit the model, or there are more stages than layers.
    """
    num_layers = len(graph.layers)
    if schedule.num_stages > num_layers:
        raise InvalidModel(
            f"{schedule.name} on {schedule.num_ranks} ranks has {schedule.num_stages} stages; the model has "
            f"{num_layers} {graph.what}"
        )
    if layers_per_partition is not None:
        if len(layers_per_partition) != schedule.num_stages:
            raise InvalidArgument(
                f"layers_per_partition has {len(layers_per_partition)} numbers, and there are {schedule.num_stages} "
                "stages"
            )
        cuts = cuts_of(graph, layers_per_partition)
    else:
        values = list(parameter_counts(graph) if costs is None else costs)
        if len(values) != num_layers:
            raise InvalidArgument(f"there are {len(values)} costs, and {num_layers} {graph.what}")
        cuts = bottleneck_partition(values, schedule.num_stages)
    return Plan(arrangement, schedule, tuple(cuts), graph.split(cuts))


def plan_ranks(
    strategy: str,
    num_ranks: int,
    num_partitions: int | None,
    num_replicas: int | None,
    schedule: str | PipelineSchedule,
) -> Arrangement:
    """Settle partitions and replicas; a table says how many partitions there are. Raises as `arrange`."""
    if isinstance(schedule, PipelineSchedule) and num_partitions is None:
        num_partitions = schedule.num_ranks
    return arrange(strategy, num_ranks, num_partitions, num_replicas)
