"""The table of actions of one replica of a training."""

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
