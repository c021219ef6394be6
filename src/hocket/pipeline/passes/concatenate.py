"""Several training steps in one table."""

from __future__ import annotations

from dataclasses import replace

from hocket.errors import InvalidArgument
from hocket.pipeline.schedule import PipelineSchedule


def concatenate(schedule: PipelineSchedule, num_steps: int) -> PipelineSchedule:
    """Return a schedule of so many steps, one after the other on every rank.

    Ranks begin a step when they are done with the one before, whatever others do; a forward pass waits for the STEP of
    its stage before, if the table has such.

    Raises:
        InvalidArgument: there is no such number of steps, or the schedule has several already.
    """
    if num_steps < 1:
        raise InvalidArgument(f"num_steps is 1 or more, not {num_steps}")
    if schedule.num_steps > 1:
        raise InvalidArgument(f"the table has {schedule.num_steps} steps already")
    rows = [
        [action._replace(step=step) for step in range(num_steps) for action in actions] for actions in schedule.actions
    ]
    return replace(schedule, actions=rows, num_steps=num_steps)
