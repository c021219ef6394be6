"""Simulate a schedule on a virtual clock."""

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
    """Simulate a schedule on a virtual clock.

    Every rank runs its actions in order, each as soon as its dependencies have ended. Messages overlap with
    computation; a rank sends one and receives one at a time. The gradient sum of a stage starts when all copies have
    reached it.

    Args:
        schedule: schedule to simulate.
        costs: costs of its actions; by default F = 1, B = 2, I = W = 1, and messages take no time.
        buffering: buffering of messages, for tables with messages: see `Buffering.parse`.

    Returns:
        When every action and message began and ended.

    Raises:
        MissingAction: an action depends on one that is not in the table.
        PipelineDeadlock: actions wait for each other; the error shows the cycle.

    Examples:
        >>> one_f_one_b, zero_bubble = (hk.pipeline.build(name, 4, 8) for name in ("1f1b", "zb-h1"))
        >>> hk.pipeline.simulate(one_f_one_b).makespan_s
        33.0
        >>> hk.pipeline.simulate(zero_bubble).makespan_s
        27.0
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
