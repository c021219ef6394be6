"""The schedule of one replica of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.errors import InvalidArgument
from hocket.pipeline.passes.recompute import recompute as recompute_pass
from hocket.pipeline.registry import find_recipe
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.setup.arrangement import Arrangement

_MICRO_BATCHES_PER_RANK = 4


def make_schedule(
    arrangement: Arrangement,
    batch_size: int | None,
    *,
    schedule: str | PipelineSchedule = "1f1b",
    options: Mapping[str, Any] | None = None,
    num_micro_batches: int | None = None,
    recompute: bool = False,
) -> PipelineSchedule:
    """Return the schedule of one replica: build it by name, or check a given table.

    Args:
        arrangement: numbers of partitions and replicas.
        batch_size: samples of a step, over all replicas; None: not checked.
        schedule: name of a schedule, or a table.
        options: options of the named schedule.
        num_micro_batches: of one replica in one step; None: 4 for each partition, limited by the samples.
        recompute: repeat forward passes before backward passes, to save memory.

    Raises:
        InvalidArgument: the schedule does not support these numbers of ranks or micro-batches, or the batch has too few
            samples.

    Examples:
        >>> schedule = hk.train.make_schedule(hk.train.Arrangement(num_partitions=2, num_replicas=1), batch_size=32)
        >>> schedule.name, schedule.num_ranks, schedule.num_micro_batches
        ('1f1b', 2, 8)
    """
    replicas = arrangement.num_replicas
    if isinstance(schedule, PipelineSchedule):
        if schedule.num_ranks != arrangement.num_partitions:
            raise InvalidArgument(
                f"the table is for {schedule.num_ranks} ranks and must be for {arrangement.num_partitions}, the number "
                "of partitions"
            )
        if options or (num_micro_batches or schedule.num_micro_batches) != schedule.num_micro_batches:
            raise InvalidArgument(
                f"a table has its options and {schedule.num_micro_batches} micro-batches already: leave out "
                "schedule_options and num_micro_batches"
            )
        table = schedule
    else:
        if num_micro_batches is None:
            usual = _MICRO_BATCHES_PER_RANK * arrangement.num_partitions if arrangement.num_partitions > 1 else 1
            num_micro_batches = max(1, min(usual, (batch_size or usual * replicas) // replicas))
        table = find_recipe(schedule).schedule(arrangement.num_partitions, num_micro_batches, **(options or {}))
    if batch_size is not None and batch_size < replicas * table.num_micro_batches:
        raise InvalidArgument(
            f"a batch of {batch_size} samples cannot be cut into {replicas} x {table.num_micro_batches} micro-batches: "
            "choose a larger batch_size, or fewer micro-batches"
        )
    return recompute_pass(table) if recompute else table
