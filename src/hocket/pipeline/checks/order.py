"""Check that actions come after their dependencies on the same rank."""

from __future__ import annotations

import numpy as np

from hocket.errors import IllegalOrder
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.waiting import describe


def check_order(schedule: PipelineSchedule) -> None:
    """Check the order on each rank; `check_deadlock` checks dependencies between ranks.

    Raises:
        IllegalOrder: an action is before one that it depends on, or overlaps with it.
        MissingAction: an action depends on one that is not in the table.
    """
    columns, dependencies = schedule.columns, schedule.dependencies
    after, before = dependencies.after, dependencies.before
    same_rank = columns.rank[after] == columns.rank[before]
    wrong = np.flatnonzero(same_rank & (columns.groups[before] >= columns.groups[after]))
    if wrong.size:
        first = wrong[np.argmin(after[wrong])]
        row, needed = int(after[first]), int(before[first])
        position = (
            "overlaps with it"
            if columns.groups[row] == columns.groups[needed]
            else (f"is later, at action {schedule.place(needed)[1]}")
        )
        raise IllegalOrder(f"{describe(schedule, row)}: it depends on {schedule.action(needed)}, which {position}")
