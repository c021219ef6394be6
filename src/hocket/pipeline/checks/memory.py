"""Check that ranks stay within their memory limits, and that all stashes are freed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.errors import InvalidArgument, MemoryLimitExceeded, StashLeak
from hocket.pipeline.costs import CostModel
from hocket.pipeline.dependencies import first_repeated
from hocket.pipeline.memory import holdings, memory_use
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.waiting import describe


def check_stashes(schedule: PipelineSchedule) -> None:
    """Check that every stash that an action allocates is freed exactly once.

    Raises:
        StashLeak: a stash is never freed, freed without being allocated, or allocated or freed twice.
    """
    for holding in holdings(schedule):
        for units, others, verb in (
            (holding.taken, holding.freed, "allocates"),
            (holding.freed, holding.taken, "frees"),
        ):
            alone = np.flatnonzero(~np.isin(units.key, others.key))
            if alone.size:
                other = "no action frees it" if verb == "allocates" else "no action allocates it"
                row, number = int(units.row[alone[0]]), int(units.micro_batch[alone[0]])
                raise StashLeak(
                    f"{describe(schedule, row)}: it {verb} the {holding.stash} of micro-batch {number}; {other}"
                )
            twice = first_repeated(units.key)
            if twice is not None:
                row, number = int(units.row[twice[1]]), int(units.micro_batch[twice[1]])
                raise StashLeak(
                    f"{describe(schedule, row)}: it {verb} the {holding.stash} of micro-batch {number} a second time"
                )


def check_memory(schedule: PipelineSchedule, costs: CostModel, limit_nbytes: float | Sequence[float]) -> None:
    """Check the memory use of ranks at every action.

    Args:
        schedule: schedule to check.
        costs: bytes of weights and stashes.
        limit_nbytes: limit of every rank, or one limit for all.

    Raises:
        MemoryLimitExceeded: a rank exceeds its limit; the error names the first action above it and the limit needed.
    """
    use = memory_use(schedule, costs)
    limits = np.atleast_1d(np.asarray(limit_nbytes, np.float64))
    if limits.shape not in ((1,), (schedule.num_ranks,)) or not (limits >= 0).all():
        raise InvalidArgument(
            f"limit_nbytes must be 0 or more, for all or for each of {schedule.num_ranks} ranks, got {limit_nbytes!r}"
        )
    limits = np.broadcast_to(limits, schedule.num_ranks)
    over = np.flatnonzero(use.during_nbytes > limits[schedule.columns.rank])
    if over.size:
        row = int(over[0])
        rank = int(schedule.columns.rank[row])
        raise MemoryLimitExceeded(
            f"{describe(schedule, row)}: rank {rank} holds {use.during_nbytes[row]:.6g} bytes here, "
            f"{use.weight_nbytes[rank]:.6g} of them weights, above its limit of {limits[rank]:.6g}; its peak is "
            f"{use.peak_nbytes[rank]:.6g}, the largest peak of all ranks {use.peak_nbytes.max():.6g}"
        )
