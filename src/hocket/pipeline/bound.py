"""A time that no schedule of a placement can beat."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.kind import kinds
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule


def lower_bound_s(
    placement: Placement, micro_batches: Sequence[int], costs: CostModel | None = None, *, splits_backward: bool = False
) -> float:
    """Return seconds that any schedule of a chain of stages takes at least.

    Every rank for itself is a machine with jobs: none can begin before its head, the time of all that leads to it,
    and its tail is still to come when it is over. The best way to run them, if jobs could be interrupted, is to take
    the one with the longest tail first; what that takes is a bound (Carlier, "The one-machine sequencing problem",
    European Journal of Operational Research 11, 1982). Messages take no time here.

    Args:
        placement: of the stages.
        micro_batches: how many every pipe has.
        costs: seconds of F and B, or of F, I and W.
        splits_backward: whether weight gradients may wait.
    """
    costs = costs or CostModel()
    num_stages = placement.num_stages
    if len(micro_batches) != placement.num_pipes:
        raise InvalidArgument(f"there are {placement.num_pipes} pipes, and micro-batches of {len(micro_batches)}")
    names = ("I", "W") if splits_backward else ("B",)
    passing, *weight = (costs.seconds_of(name, num_stages) for name in names)
    forward = costs.seconds_of("F", num_stages)
    return _bound_s(placement, micro_batches, forward, passing, weight[0] if weight else np.zeros(num_stages))


def _bound_s(
    placement: Placement,
    micro_batches: Sequence[int],
    forward: NDArray[np.float64],
    passing: NDArray[np.float64],
    weight: NDArray[np.float64],
) -> float:
    """The bound for seconds by stage: of forward passes, of what gradients wait for, and of what can wait itself."""
    to_here = np.concatenate([[0.0], np.cumsum(forward)])
    from_here = np.concatenate([np.cumsum(passing[::-1])[::-1], [0.0]])
    down, up = float(to_here[-1]), float(from_here[0])
    bound = 0.0
    for rank in range(placement.num_ranks):
        jobs: list[tuple[float, float, float]] = []  # head, seconds, tail
        for pipe, stage in placement.stages_of(rank):
            # Micro-batches of a pipe come one after the other, as far apart as the slowest stage that they passed
            # takes, and each that is later than others has the slowest stage to come for itself.
            apart_f = forward[:stage].max(initial=0.0)
            apart_b = max(forward.max(initial=0.0), passing[stage + 1 :].max(initial=0.0))
            to_come = passing[:stage].max(initial=0.0)
            for turn in range(micro_batches[pipe]):
                behind = micro_batches[pipe] - 1 - turn
                head_b = down + float(from_here[stage + 1]) + turn * apart_b
                tail_f = float(to_here[-1] - to_here[stage + 1]) + up
                tail_b = float(up - from_here[stage]) + behind * to_come
                jobs.append((float(to_here[stage]) + turn * apart_f, float(forward[stage]), tail_f))
                jobs.append((head_b, float(passing[stage]), tail_b))
                if weight[stage]:
                    jobs.append((head_b + float(passing[stage]), float(weight[stage]), 0.0))
        bound = max(bound, _longest_tail_first(jobs))
    return bound


def bound_of(schedule: PipelineSchedule, costs: CostModel) -> float | None:
    """Return a time that no order of a schedule's actions can beat, or None where there is no bound for such actions.

    There is one for one step of F and B, or of F, I and W, along a chain.
    """
    columns = schedule.columns
    has_others = any(name in ("R", "STEP") or kinds()[name].counts_as for name in columns.kinds)
    has_others |= bool(columns.with_previous.any() and costs.overlapped_s)
    if has_others or not schedule.is_chain or schedule.num_steps > 1:
        return None
    first = columns.rows("F")
    first = first[columns.stage[first] == 0]
    counts = np.bincount(columns.pipe[first], columns.width[first], schedule.num_pipes).astype(int).tolist()
    if not {"B", "I"} <= set(columns.kinds):
        return lower_bound_s(schedule.placement, counts, costs, splits_backward="I" in columns.kinds)
    # Of a table that has both, every backward pass might be whichever is shorter.
    forward, whole, inputs, weights = (costs.seconds_of(name, schedule.num_stages) for name in "FBIW")
    passing = np.minimum(whole, inputs)
    return _bound_s(
        schedule.placement, counts, forward, passing, np.maximum(0.0, np.minimum(whole, inputs + weights) - passing)
    )


def _longest_tail_first(jobs: list[tuple[float, float, float]]) -> float:
    """The time of jobs on one machine that may be interrupted."""
    jobs.sort()
    waiting: list[tuple[float, float]] = []  # minus the tail, what is left
    now, end, place = 0.0, 0.0, 0
    while place < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[place][0])
        while place < len(jobs) and jobs[place][0] <= now:
            heapq.heappush(waiting, (-jobs[place][2], jobs[place][1]))
            place += 1
        tail, left = heapq.heappop(waiting)
        until = jobs[place][0] if place < len(jobs) else float("inf")
        if now + left > until:  # set, not added up: sums are rounded, and might never come to it
            heapq.heappush(waiting, (tail, left - (until - now)))
            now = until
        else:
            now += left
            end = max(end, now - tail)
    return end
