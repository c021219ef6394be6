"""Split backward passes into two parts, and merge them."""

from __future__ import annotations

from hocket.pipeline.action import Action
from hocket.pipeline.schedule import PipelineSchedule


def split_backward(schedule: PipelineSchedule) -> PipelineSchedule:
    """Replace every B by I and W; `retime` can then move weight gradients into bubbles.

    A backward pass that overlaps with another action stays whole.

    Examples:
        >>> schedule = hk.pipeline.split_backward(hk.pipeline.build("gpipe", 2, 2))
        >>> print(*schedule.actions[0])
        0F0 0F1 0I0 0W0 0I1 0W1
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
    """Replace every I that its W follows directly by B; actions that overlap with others stay split.

    Examples:
        >>> schedule = hk.pipeline.build("gpipe", 2, 2)
        >>> hk.pipeline.merge_backward(hk.pipeline.split_backward(schedule)) == schedule
        True
    """
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
