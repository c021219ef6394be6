"""Where the gradients of a stage are summed over its copies."""

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
    """Begin the sum of each stage's gradients somewhere, and wait for all of them at the end.

    Args:
        schedule: of one step. Stages with one copy, here and in replicas (`CostModel.num_replicas`), have no sum.
        mode: "lazy": all sums begin after all other work. "eager": each begins after the last gradient of its copy.
            "eager-opt": so where the rank is idle at some time afterwards, and lazily elsewhere, since a sum that goes
            on while its rank computes slows it down (arXiv 2107.06925, section 3.2).
        costs: by which ranks are idle.
        with_step: update the weights of every stage at the end, too.

    Raises:
        InvalidArgument: there is no such mode, or the schedule has such sums already.
    """
    if mode not in _IS_EAGER:
        raise InvalidArgument(f"gradients are summed {', '.join(SYNC_MODES[:-1])} or {SYNC_MODES[-1]}, not {mode!r}")
    if schedule.num_steps > 1 or schedule.columns.counted_as("SYNC_START", "SYNC_WAIT", "STEP"):
        raise InvalidArgument("sums go into a table of one step that has none")
    costs = costs or CostModel()
    timeline = simulate(schedule, costs)
    columns = schedule.columns
    gradients = columns.rows("B", "W")
    rows = []
    for rank, actions in enumerate(schedule.actions):
        at: defaultdict[int, list[Action]] = defaultdict(list)
        started, updated = [], []
        for pipe, stage in schedule.placement.stages_of(rank):
            mine = gradients[(columns.pipe[gradients] == pipe) & (columns.stage[gradients] == stage)]
            updated.append(Action("STEP", stage, pipe=pipe))
            if _num_copies(schedule, stage) * costs.num_replicas > 1:
                start = Action("SYNC_START", stage, pipe=pipe)
                end = int(columns.starts[rank + 1])
                is_eager = mine.size and _IS_EAGER[mode](timeline, int(mine.max()))
                place = _group_end(schedule, int(mine.max())) if is_eager else end
                at[place].append(start)
                started.append((place, start))
        row: list[Action] = []
        for place, action in enumerate(actions, int(columns.starts[rank])):
            row += [*at[place], action]
        row += at[int(columns.starts[rank + 1])]
        row += [start._replace(kind="SYNC_WAIT") for _, start in sorted(started, key=lambda each: each[0])]
        rows.append(row + updated if with_step else row)
    return replace(schedule, actions=rows)


def _num_copies(schedule: PipelineSchedule, stage: int) -> int:
    return len({ranks[stage] for ranks in schedule.placement.ranks})


def _group_end(schedule: PipelineSchedule, row: int) -> int:
    """The place after an action and all that overlaps with it."""
    groups = schedule.columns.groups
    return int(np.searchsorted(groups, groups[row], "right"))


def _idles_after(timeline: PipelineTimeline, row: int) -> bool:
    """Whether the rank of an action waits for something between its end and the end of its own work."""
    columns = timeline.schedule.columns
    rank = int(columns.rank[row])
    later = slice(row + 1, int(columns.starts[rank + 1]))
    work_s = float((timeline.end_s[later] - timeline.begin_s[later])[~columns.with_previous[later]].sum())
    return float(timeline.end_s[row]) + work_s < float(timeline.makespan_s) - 1e-9 * timeline.makespan_s
