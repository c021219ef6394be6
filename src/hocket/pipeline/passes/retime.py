"""Reorder a schedule for other costs."""

from __future__ import annotations

from dataclasses import replace

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


def retime(schedule: PipelineSchedule, costs: CostModel) -> PipelineSchedule:
    """Return a faster schedule for the same placement and micro-batches, or the schedule itself.

    Its peak memory is at most the peak memory of the given schedule, over all ranks.

    Args:
        schedule: schedule of one step with only forward and backward passes, all whole (B) or all split (I and W).
        costs: costs of its actions.

    Returns:
        A schedule that is not slower.

    Raises:
        InvalidArgument: the schedule has other actions.

    Examples:
        >>> costs = hk.pipeline.CostModel(seconds={"F": 1.0, "I": 1.0, "W": 1.0})
        >>> schedule = hk.pipeline.split_backward(hk.pipeline.build("1f1b", 4, 8))
        >>> hk.pipeline.simulate(schedule, costs).makespan_s
        30.0
        >>> hk.pipeline.simulate(hk.pipeline.retime(schedule, costs), costs).makespan_s
        28.0
    """
    columns = schedule.columns
    used = set(columns.kinds)
    if not (used <= {"F", "B"} or used <= {"F", "I", "W"}) or schedule.num_steps > 1 or not schedule.is_chain:
        raise InvalidArgument(
            f"retime needs F and B, or F, I and W, of one step of a chain, got {', '.join(sorted(used))}"
        )
    micro_batches: list[list[int]] = [[] for _ in range(schedule.num_pipes)]
    widths = set()
    for actions in schedule.actions:
        for action in actions:
            if action.kind == "F" and action.stage == 0:
                micro_batches[action.pipe] += action.micro_batches
                widths.add(action.width)
    if not widths:
        raise InvalidArgument(f"the schedule {schedule!r} has no forward pass of stage 0")
    before = simulate(schedule, costs)
    counted = simulate(schedule, CostModel(seconds=costs.seconds))
    rule = Rule(
        most_kept=int(counted.peak_nbytes.max(initial=1)), splits_backward="I" in used, forward_width=max(widths)
    )
    try:
        candidate = search_list_schedule(schedule.placement, micro_batches, costs, rule)
    except InvalidArgument:
        return schedule  # list scheduling needs more activations than this order
    candidate = replace(candidate, name=schedule.name, parameters=schedule.parameters)
    after = simulate(candidate, costs)
    is_better = after.makespan_s < before.makespan_s and after.peak_nbytes.max() <= before.peak_nbytes.max()
    return candidate if is_better else schedule
