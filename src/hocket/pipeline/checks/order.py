"""On every rank, what an action needs of the same rank stands before it."""

from __future__ import annotations

import numpy as np

from hocket.errors import IllegalOrder
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.waiting import describe


def check_order(schedule: PipelineSchedule) -> None:
    """Check every rank for itself; what ranks need of each other is `check_deadlock`'s.

    Raises:
        IllegalOrder: an action stands before one that it needs, or overlaps with it.
        MissingAction: what an action needs is not in the table.
    """
    columns, dependencies = schedule.columns, schedule.dependencies
    after, before = dependencies.after, dependencies.before
    same_rank = columns.rank[after] == columns.rank[before]
    wrong = np.flatnonzero(same_rank & (columns.groups[before] >= columns.groups[after]))
    if wrong.size:
        first = wrong[np.argmin(after[wrong])]
        row, needed = int(after[first]), int(before[first])
        place = (
            "overlaps with it"
            if columns.groups[row] == columns.groups[needed]
            else (f"stands later, at action {schedule.place(needed)[1]}")
        )
        raise IllegalOrder(f"{describe(schedule, row)}: it needs {schedule.action(needed)}, which {place}")
