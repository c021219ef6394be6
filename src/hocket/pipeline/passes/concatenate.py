"""Several training steps in one table."""

from __future__ import annotations

from dataclasses import replace

from hocket.errors import InvalidArgument
from hocket.pipeline.schedule import PipelineSchedule


def concatenate(schedule: PipelineSchedule, num_steps: int) -> PipelineSchedule:
    """Repeat a schedule for several training steps.

    Each rank starts a step after its own previous step, independent of other ranks. If the table has STEP actions, a
    forward pass waits for the STEP of its stage in the previous step.

    Args:
        schedule: schedule of one step.
        num_steps: number of steps.

    Returns:
        A schedule of `num_steps` steps.

    Raises:
        InvalidArgument: `num_steps` is below 1, or the schedule has several steps already.

    Examples:
        >>> schedule = hk.pipeline.build("zb-h2", 4, 8)
        >>> hk.pipeline.simulate(schedule).makespan_s
        27.0
        >>> hk.pipeline.simulate(hk.pipeline.concatenate(schedule, 3)).makespan_s  # steps overlap
        75.0
    """
    if num_steps < 1:
        raise InvalidArgument(f"num_steps must be 1 or more, got {num_steps}")
    if schedule.num_steps > 1:
        raise InvalidArgument(f"the schedule must have one step, it has {schedule.num_steps}")
    rows = [
        [action._replace(step=step) for step in range(num_steps) for action in actions] for actions in schedule.actions
    ]
    return replace(schedule, actions=rows, num_steps=num_steps)
