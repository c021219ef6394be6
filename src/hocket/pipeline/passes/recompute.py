"""Forward passes that keep their inputs alone, and are done again before the backward pass."""

from __future__ import annotations

from collections.abc import Collection

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.kind import kinds
from hocket.pipeline.schedule import PipelineSchedule


def recompute(schedule: PipelineSchedule, stages: Collection[int] | None = None) -> PipelineSchedule:
    """Add a second forward pass before every backward pass.

    Args:
        schedule: without any.
        stages: that do so; None: all of them.

    Raises:
        InvalidArgument: there is no such stage, or the schedule has second forward passes already.
    """
    chosen = range(schedule.num_stages) if stages is None else stages
    unknown = [stage for stage in chosen if not 0 <= stage < schedule.num_stages]
    if unknown:
        raise InvalidArgument(f"there are stages 0 to {schedule.num_stages - 1}, not {unknown[0]}")
    if schedule.columns.counted_as("R"):
        raise InvalidArgument("the table has second forward passes already")
    backward = schedule.columns.counted_as("B", "I")
    rows = []
    for actions in schedule.actions:
        row: list[Action] = []
        group = 0  # where the actions begin that overlap with the last one
        for action in actions:
            if not action.with_previous:
                group = len(row)
                while group and kinds()[row[group - 1].kind].message == "receive":
                    group -= 1  # while the rank waits for the gradient
            if action.kind in backward and action.stage in chosen:
                row.insert(group, action._replace(kind="R", with_previous=False))
                group += 1
            row.append(action)
        rows.append(row)
    return schedule.with_actions(rows)
