"""Backward passes in two parts, and whole again."""

from __future__ import annotations

from hocket.pipeline.action import Action
from hocket.pipeline.schedule import PipelineSchedule


def split_backward(schedule: PipelineSchedule) -> PipelineSchedule:
    """Make I and W of every B, the one after the other; `retime` then moves the weight gradients to where they fit.

    A backward pass that overlaps with another action stays whole.
    """
    rows = []
    for actions in schedule.actions:
        row: list[Action] = []
        for index, action in enumerate(actions):
            overlaps = action.with_previous or (index + 1 < len(actions) and actions[index + 1].with_previous)
            if action.kind == "B" and not overlaps:
                row += [action._replace(kind="I"), action._replace(kind="W")]
            else:
                row.append(action)
        rows.append(row)
    return schedule.with_actions(rows)


def merge_backward(schedule: PipelineSchedule) -> PipelineSchedule:
    """Make B of every I that its W follows, if neither overlaps with anything; others stay apart."""
    rows = []
    for actions in schedule.actions:
        row: list[Action] = []
        for action, following in zip(actions, [*actions[1:], None], strict=True):
            is_alone = not action.with_previous and not (following and following.with_previous)
            if is_alone and action.kind == "W" and row and row[-1] == action._replace(kind="I"):
                row[-1] = row[-1]._replace(kind="B")
            else:
                row.append(action)
        rows.append(row)
    return schedule.with_actions(rows)
