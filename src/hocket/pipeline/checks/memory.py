"""No rank keeps more than it may, and all that is kept is let go."""

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
    """Check that whatever an action keeps is let go by another one, once.

    Raises:
        StashLeak: something is kept and never let go, or let go without being kept.
    """
    for holding in holdings(schedule):
        for units, others, words in (
            (holding.taken, holding.freed, "keeps"),
            (holding.freed, holding.taken, "lets go"),
        ):
            alone = np.flatnonzero(~np.isin(units.key, others.key))
            if alone.size:
                other = "nothing lets it go" if words == "keeps" else "nothing keeps it"
                row, number = int(units.row[alone[0]]), int(units.micro_batch[alone[0]])
                raise StashLeak(
                    f"{describe(schedule, row)}: it {words} the {holding.stash} of micro-batch {number}; {other}"
                )
            twice = first_repeated(units.key)
            if twice is not None:
                row, number = int(units.row[twice[1]]), int(units.micro_batch[twice[1]])
                raise StashLeak(
                    f"{describe(schedule, row)}: it {words} the {holding.stash} of micro-batch {number} a second time"
                )


def check_memory(schedule: PipelineSchedule, costs: CostModel, limit_nbytes: float | Sequence[float]) -> None:
    """Check what ranks hold at every action.

    Args:
        schedule: to check.
        costs: bytes of weights and of what is kept.
        limit_nbytes: of every rank, or of all alike.

    Raises:
        MemoryLimitExceeded: a rank holds more; names the first action that is too much, and the least limit.
    """
    use = memory_use(schedule, costs)
    limits = np.atleast_1d(np.asarray(limit_nbytes, np.float64))
    if limits.shape not in ((1,), (schedule.num_ranks,)) or not (limits >= 0).all():
        raise InvalidArgument(f"a limit is a number of bytes, or one for each of {schedule.num_ranks} ranks")
    limits = np.broadcast_to(limits, schedule.num_ranks)
    over = np.flatnonzero(use.during_nbytes > limits[schedule.columns.rank])
    if over.size:
        row = int(over[0])
        rank = int(schedule.columns.rank[row])
        raise MemoryLimitExceeded(
            f"{describe(schedule, row)}: rank {rank} holds {use.during_nbytes[row]:.6g} bytes then, "
            f"{use.weight_nbytes[rank]:.6g} of them weights, and may hold {limits[rank]:.6g}; it needs "
            f"{use.peak_nbytes[rank]:.6g} at its peak, and the ranks {use.peak_nbytes.max():.6g} at most"
        )
