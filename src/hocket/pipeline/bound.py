"""A lower bound for the time of all schedules of a placement."""

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
    """Return a lower bound, in seconds, for the time of any schedule of a chain of stages.

    Each rank is treated as one machine with jobs. A job has a head, the time of everything that must precede it, and a
    tail, the time of everything that must follow it. If jobs may be interrupted, running the job with the longest tail
    first is optimal, and its time is a lower bound (Carlier, "The one-machine sequencing problem", European Journal of
    Operational Research 11, 1982). Messages take no time in this bound.

    Args:
        placement: placement of the stages.
        micro_batches: number of micro-batches of every pipe.
        costs: seconds of F and B, or of F, I and W; unit costs if not given.
        splits_backward: whether weight gradients may be deferred.

    Returns:
        Seconds.

    Raises:
        InvalidArgument: `micro_batches` does not have one number per pipe.

    Examples:
        >>> print(hk.pipeline.lower_bound_s(hk.pipeline.linear(4), [8]))
        33.0
        >>> hk.pipeline.simulate(hk.pipeline.build("1f1b", 4, 8)).makespan_s  # reaches the bound
        33.0
    """
    costs = costs or CostModel()
    num_stages = placement.num_stages
    if len(micro_batches) != placement.num_pipes:
        raise InvalidArgument(
            f"micro_batches must have one number for each of {placement.num_pipes} pipes, got {len(micro_batches)}"
        )
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
    """Return the bound for seconds by stage of forward passes, input gradients and deferrable weight gradients."""
    to_here = np.concatenate([[0.0], np.cumsum(forward)])
    from_here = np.concatenate([np.cumsum(passing[::-1])[::-1], [0.0]])
    down, up = float(to_here[-1]), float(from_here[0])
    bound = 0.0
    for rank in range(placement.num_ranks):
        jobs: list[tuple[float, float, float]] = []  # head, seconds, tail
        for pipe, stage in placement.stages_of(rank):
            # Micro-batches of a pipe arrive in sequence. The interval between two of them is at least the time of the
            # slowest stage before this one; after it, each later one still needs the slowest stage that follows.
            interval_f = forward[:stage].max(initial=0.0)
            interval_b = max(forward.max(initial=0.0), passing[stage + 1 :].max(initial=0.0))
            interval_after = passing[:stage].max(initial=0.0)
            for index in range(micro_batches[pipe]):
                num_later = micro_batches[pipe] - 1 - index
                head_b = down + float(from_here[stage + 1]) + index * interval_b
                tail_f = float(to_here[-1] - to_here[stage + 1]) + up
                tail_b = float(up - from_here[stage]) + num_later * interval_after
                jobs.append((float(to_here[stage]) + index * interval_f, float(forward[stage]), tail_f))
                jobs.append((head_b, float(passing[stage]), tail_b))
                if weight[stage]:
                    jobs.append((head_b + float(passing[stage]), float(weight[stage]), 0.0))
        bound = max(bound, _longest_tail_first(jobs))
    return bound


def bound_of(schedule: PipelineSchedule, costs: CostModel) -> float | None:
    """Return a lower bound for the time of a schedule's actions in any order, or None if no bound is known.

    Bounds are known for one step of F and B, or of F, I and W, along a chain.
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
    # The table has whole and split backward passes: assume the shorter one for each.
    forward, whole, inputs, weights = (costs.seconds_of(name, schedule.num_stages) for name in "FBIW")
    passing = np.minimum(whole, inputs)
    return _bound_s(
        schedule.placement, counts, forward, passing, np.maximum(0.0, np.minimum(whole, inputs + weights) - passing)
    )


def _longest_tail_first(jobs: list[tuple[float, float, float]]) -> float:
    """Return the time of interruptible jobs on one machine, run by longest tail first."""
    jobs.sort()
    waiting: list[tuple[float, float]] = []  # minus the tail, remaining seconds
    now, end, num_released = 0.0, 0.0, 0
    while num_released < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[num_released][0])
        while num_released < len(jobs) and jobs[num_released][0] <= now:
            heapq.heappush(waiting, (-jobs[num_released][2], jobs[num_released][1]))
            num_released += 1
        tail, remaining_s = heapq.heappop(waiting)
        until = jobs[num_released][0] if num_released < len(jobs) else float("inf")
        if now + remaining_s > until:  # assigned, not summed: a rounded sum might never reach `until`
            heapq.heappush(waiting, (tail, remaining_s - (until - now)))
            now = until
        else:
            now += remaining_s
            end = max(end, now - tail)
    return end
