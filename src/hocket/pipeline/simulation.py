"""A schedule on the virtual clock."""

from __future__ import annotations

from hocket.errors import PipelineDeadlock, SimulationDeadlock
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.costs import CostModel
from hocket.pipeline.lowered import lower_to_tasks
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.timeline import PipelineTimeline
from hocket.pipeline.waiting import describe_deadlock


def simulate(
    schedule: PipelineSchedule, costs: CostModel | None = None, *, buffering: Buffering | str | int = TAGGED
) -> PipelineTimeline:
    """Run a schedule on a virtual clock.

    Every rank does its actions one after the other, each as soon as what it waits for is over. Messages cross while
    ranks compute, one at a time out of a rank and one into it. A sum over the copies of a stage begins when all of
    them have come to it.

    Args:
        schedule: to run.
        costs: of its actions; F = 1, B = 2, I = W = 1 and messages that take no time if not given.
        buffering: of messages, for tables that name them: see `Buffering.parse`.

    Raises:
        MissingAction: what an action waits for is not in the table.
        PipelineDeadlock: actions wait for each other; shows the cycle.
    """
    costs = costs or CostModel()
    buffering = Buffering.parse(buffering)
    lowered = lower_to_tasks(schedule, costs, buffering)
    try:
        times = lowered.graph.simulate()
    except SimulationDeadlock as stuck:
        raise PipelineDeadlock(describe_deadlock(schedule, lowered, stuck.tasks, buffering)) from None
    messages = lowered.messages
    return PipelineTimeline(
        schedule,
        times.begin_s[lowered.begins],
        times.end_s[lowered.ends],
        messages,
        times.begin_s[lowered.message_tasks],
        times.end_s[lowered.message_tasks],
        costs=costs,
        buffering=buffering,
        task_end_s=times.end_s,
    )
