"""Add the gradient sums over the copies of a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate
from hocket.pipeline.timeline import PipelineTimeline

_IS_EAGER: Mapping[str, Callable[[PipelineTimeline, int], bool]] = {
    "lazy": lambda timeline, row: False,
    "eager": lambda timeline, row: True,
    "eager-opt": lambda timeline, row: _idles_after(timeline, row),
}
SYNC_MODES = tuple(_IS_EAGER)


def add_gradient_sync(
    schedule: PipelineSchedule, mode: str = "eager-opt", costs: CostModel | None = None, *, with_step: bool = False
) -> PipelineSchedule:
    """Add the gradient sum of each stage: start it at a point chosen by `mode`, and wait for it at the end.

    Args:
        schedule: schedule of one step. Stages with a single copy, including replicas (`CostModel.num_replicas`), need
            no sum.
        mode: "lazy": start all sums after all other work. "eager": start each sum after the last gradient of its copy.
            "eager-opt": eager if the rank is idle at some later time, else lazy, because a sum slows down the
            computation beside it (arXiv 2107.06925, section 3.2).
        costs: costs to find idle ranks.
        with_step: whether to add an update of the weights of every stage at the end.

    Returns:
        The schedule with SYNC_START and SYNC_WAIT, and STEP if requested.

    Raises:
        InvalidArgument: the mode is unknown, or the schedule already has such actions.

    Examples:
        >>> schedule = hk.pipeline.build("chimera", 2, 2)  # two copies of each stage
        >>> print(*hk.pipeline.add_gradient_sync(schedule, "lazy").actions[0])
        0F0 1:1F1 1:1B1 0B0 0SYNC_START 1:1SYNC_START 0SYNC_WAIT 1:1SYNC_WAIT
    """
    if mode not in _IS_EAGER:
        raise InvalidArgument(f"mode must be {', '.join(SYNC_MODES[:-1])} or {SYNC_MODES[-1]}, got {mode!r}")
    if schedule.num_steps > 1 or schedule.columns.counted_as("SYNC_START", "SYNC_WAIT", "STEP"):
        raise InvalidArgument(
            f"the schedule must have one step and no gradient sums, got {schedule!r} of {schedule.num_steps} steps"
        )
    costs = costs or CostModel()
    timeline = simulate(schedule, costs)
    columns = schedule.columns
    gradients = columns.rows("B", "W")
    rows = []
    for rank, actions in enumerate(schedule.actions):
        starts_at: defaultdict[int, list[Action]] = defaultdict(list)
        starts, updates = [], []
        for pipe, stage in schedule.placement.stages_of(rank):
            mine = gradients[(columns.pipe[gradients] == pipe) & (columns.stage[gradients] == stage)]
            updates.append(Action("STEP", stage, pipe=pipe))
            if _num_copies(schedule, stage) * costs.num_replicas > 1:
                start = Action("SYNC_START", stage, pipe=pipe)
                end = int(columns.starts[rank + 1])
                is_eager = mine.size and _IS_EAGER[mode](timeline, int(mine.max()))
                place = _group_end(schedule, int(mine.max())) if is_eager else end
                starts_at[place].append(start)
                starts.append((place, start))
        row: list[Action] = []
        for place, action in enumerate(actions, int(columns.starts[rank])):
            row += [*starts_at[place], action]
        row += starts_at[int(columns.starts[rank + 1])]
        row += [start._replace(kind="SYNC_WAIT") for _, start in sorted(starts, key=lambda each: each[0])]
        rows.append(row + updates if with_step else row)
    return replace(schedule, actions=rows)


def _num_copies(schedule: PipelineSchedule, stage: int) -> int:
    return len({ranks[stage] for ranks in schedule.placement.ranks})


def _group_end(schedule: PipelineSchedule, row: int) -> int:
    """Return the row after an action and all actions that overlap with it."""
    groups = schedule.columns.groups
    return int(np.searchsorted(groups, groups[row], "right"))


def _idles_after(timeline: PipelineTimeline, row: int) -> bool:
    """Return whether the rank of an action is idle at some time after the action."""
    columns = timeline.schedule.columns
    rank = int(columns.rank[row])
    later = slice(row + 1, int(columns.starts[rank + 1]))
    work_s = float((timeline.end_s[later] - timeline.begin_s[later])[~columns.with_previous[later]].sum())
    return float(timeline.end_s[row]) + work_s < float(timeline.makespan_s) - 1e-9 * timeline.makespan_s
