"""The order of a schedule, chosen anew for other costs."""

from __future__ import annotations

from dataclasses import replace

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


def retime(schedule: PipelineSchedule, costs: CostModel) -> PipelineSchedule:
    """Return the schedule, or a faster one for the same placement and micro-batches.

    No rank of it holds more bytes than the rank of the schedule that holds most.

    Args:
        schedule: of one step, with forward and backward passes alone; all backward passes whole, or all in two parts.
        costs: of its actions.

    Raises:
        InvalidArgument: the schedule has other actions.
    """
    columns = schedule.columns
    used = set(columns.kinds)
    if not (used <= {"F", "B"} or used <= {"F", "I", "W"}) or schedule.num_steps > 1 or not schedule.is_chain:
        raise InvalidArgument(f"retime orders F and B, or F, I and W, of one step of a chain, not {', '.join(used)}")
    micro_batches: list[list[int]] = [[] for _ in range(schedule.num_pipes)]
    widths = set()
    for actions in schedule.actions:
        for action in actions:
            if action.kind == "F" and action.stage == 0:
                micro_batches[action.pipe] += action.micro_batches
                widths.add(action.width)
    if not widths:
        raise InvalidArgument("there is no forward pass of stage 0 in the table")
    as_made = simulate(schedule, costs)
    counted = simulate(schedule, CostModel(seconds=costs.seconds))
    rule = Rule(
        most_kept=int(counted.peak_nbytes.max(initial=1)), splits_backward="I" in used, forward_width=max(widths)
    )
    try:
        found = search_list_schedule(schedule.placement, micro_batches, costs, rule)
    except InvalidArgument:
        return schedule  # so few activations are kept that only the order it has gets through
    found = replace(found, name=schedule.name, parameters=schedule.parameters)
    anew = simulate(found, costs)
    is_better = anew.makespan_s < as_made.makespan_s and anew.peak_nbytes.max() <= as_made.peak_nbytes.max()
    return found if is_better else schedule
