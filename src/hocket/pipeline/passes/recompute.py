"""Recompute forward passes before backward passes, so that only inputs are kept."""

from __future__ import annotations

from collections.abc import Collection

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.kind import kinds
from hocket.pipeline.schedule import PipelineSchedule


def recompute(schedule: PipelineSchedule, stages: Collection[int] | None = None) -> PipelineSchedule:
    """Add a recomputation of the forward pass (R) before every backward pass.

    Args:
        schedule: schedule without recomputation.
        stages: stages to recompute; None: all.

    Returns:
        The schedule with R actions.

    Raises:
        InvalidArgument: a stage does not exist, or the schedule has R actions already.

    Examples:
        >>> schedule = hk.pipeline.recompute(hk.pipeline.build("gpipe", 2, 1), stages=[0])
        >>> print(*schedule.actions[0])
        0F0 0R0 0B0
    """
    chosen = range(schedule.num_stages) if stages is None else stages
    unknown = [stage for stage in chosen if not 0 <= stage < schedule.num_stages]
    if unknown:
        raise InvalidArgument(f"stages must be from 0 to {schedule.num_stages - 1}, got {unknown[0]}")
    if schedule.columns.counted_as("R"):
        raise InvalidArgument(f"the schedule already has recomputation: {', '.join(schedule.columns.counted_as('R'))}")
    backward = schedule.columns.counted_as("B", "I")
    rows = []
    for actions in schedule.actions:
        row: list[Action] = []
        group = 0  # index of the first action that overlaps with the last one
        for action in actions:
            if not action.with_previous:
                group = len(row)
                while group and kinds()[row[group - 1].kind].message == "receive":
                    group -= 1  # recompute while the rank waits for the gradient
            if action.kind in backward and action.stage in chosen:
                row.insert(group, action._replace(kind="R", with_previous=False))
                group += 1
            row.append(action)
        rows.append(row)
    return schedule.with_actions(rows)
