"""List scheduling: on a virtual clock, each idle rank starts the most urgent of its ready actions."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.bound import lower_bound_s
from hocket.pipeline.costs import CostModel, per_stage
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


@dataclass(frozen=True)
class Rule:
    """How a rank chooses its next action.

    Args:
        most_kept: maximum number of activations (of one micro-batch and stage) on a rank; None: unlimited.
        eager_until: while a rank holds fewer activations, it prefers forward passes to backward passes.
        splits_backward: whether weight gradients are separate actions, run when nothing else is ready.
        forward_width: micro-batches per forward pass.

    Raises:
        InvalidArgument: `forward_width` or `most_kept` is below 1.

    Examples:
        >>> rule = hk.pipeline.Rule(most_kept=1)  # the next micro-batch waits for the backward pass
        >>> schedule = hk.pipeline.list_schedule(hk.pipeline.linear(2), [range(3)], rule=rule)
        >>> print(*schedule.actions[0])
        0F0 0B0 0F1 0B1 0F2 0B2
    """

    most_kept: int | None = None
    eager_until: int = 0
    splits_backward: bool = False
    forward_width: int = 1

    def __post_init__(self) -> None:
        if self.forward_width < 1 or (self.most_kept is not None and self.most_kept < 1):
            raise InvalidArgument(
                f"forward_width and most_kept must be 1 or more, got {self.forward_width} and {self.most_kept}"
            )


class _ListJob(NamedTuple):
    """A ready action in a heap; the smallest is the most urgent."""

    urgency: tuple[int, int]
    kind: str
    stage: int
    pipe: int
    number: int  # of the micro-batch within its pipe; for a forward pass, of its group


def search_list_schedule(
    placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel | None = None, rule: Rule = Rule()
) -> PipelineSchedule:
    """Try list schedules of different eagerness and return the fastest; among equals, the one with the least memory.

    Args:
        placement, micro_batches, costs: as for `list_schedule`.
        rule: rule of all attempts, except for `eager_until`.

    Returns:
        The fastest schedule.

    Raises:
        InvalidArgument: `rule.most_kept` is too small for any micro-batch.

    Examples:
        >>> rule = hk.pipeline.Rule(splits_backward=True)
        >>> schedule = hk.pipeline.search_list_schedule(hk.pipeline.linear(2), [range(3)], rule=rule)
        >>> print(*schedule.actions[1])
        1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
        >>> hk.pipeline.simulate(schedule).makespan_s  # one second above the work of a rank
        10.0
    """
    costs = costs or CostModel()
    stages_per_rank = max(len(placement.stages_of(rank)) for rank in range(placement.num_ranks))
    usual = max(
        placement.num_ranks * stages_per_rank // placement.num_pipes, stages_per_rank * rule.forward_width
    )  # the activations of 1F1B
    caps = {cap for cap in (usual, usual * 3 // 2, 2 * usual) if rule.most_kept is None or cap < rule.most_kept}
    least_s = lower_bound_s(
        placement, [len(each) for each in micro_batches], costs, splits_backward=rule.splits_backward
    )
    candidates: list[tuple[float, int, int, PipelineSchedule]] = []
    for cap in sorted(caps | ({rule.most_kept} if rule.most_kept else set())):
        for eager_until in sorted({0, usual // 2, usual - 2, usual - 1, usual}):
            scheduler = _ListScheduler(
                placement, micro_batches, costs, replace(rule, most_kept=cap, eager_until=eager_until)
            )
            try:
                schedule = scheduler.run()
            except InvalidArgument:
                continue  # too few activations for this placement: try others; if all fail, raise below
            # The scheduler's clock ignores contention of messages, so simulate where they take time.
            end_s = scheduler.now if costs.fabric is None else simulate(schedule, costs).makespan_s
            candidates.append((end_s, scheduler.peak, len(candidates), schedule))
            if end_s <= least_s * (1 + 1e-12):
                return min(candidates)[-1]  # optimal, and more eager schedules need no less memory
    if not candidates and rule.most_kept is None:
        return list_schedule(placement, micro_batches, costs, rule)
    if not candidates:
        raise InvalidArgument(f"most_kept={rule.most_kept} activations per rank are too few for any micro-batch")
    return min(candidates)[-1]


def list_schedule(
    placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel | None = None, rule: Rule = Rule()
) -> PipelineSchedule:
    """Schedule a chain of stages by list scheduling: backward before forward passes, the oldest micro-batch first.

    Args:
        placement: placement of the stages.
        micro_batches: micro-batches of every pipe, in order.
        costs: costs of the actions, for the virtual clock; unit costs if not given.
        rule: how a rank chooses its next action.

    Returns:
        The schedule.

    Raises:
        InvalidArgument: `rule.most_kept` is too small for any micro-batch.

    Examples:
        >>> schedule = hk.pipeline.list_schedule(hk.pipeline.linear(2), [range(3)])
        >>> print(*schedule.actions[1])
        1F0 1B0 1F1 1B1 1F2 1B2
    """
    return _ListScheduler(placement, micro_batches, costs or CostModel(), rule).run()


class _ListScheduler:
    def __init__(
        self, placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel, rule: Rule
    ) -> None:
        if len(micro_batches) != placement.num_pipes:
            raise InvalidArgument(
                f"micro_batches needs one sequence for each of {placement.num_pipes} pipes, got {len(micro_batches)}"
            )
        self.placement, self.micro_batches, self.rule = placement, micro_batches, rule
        num_stages, num_ranks = placement.num_stages, placement.num_ranks
        self.seconds = {kind: costs.seconds_of(kind, num_stages).tolist() for kind in "FBIW"}
        self.delays_s = self._delays(costs)
        self.stages_on = [
            [sum(holder == rank for holder in ranks) for rank in range(num_ranks)] for ranks in placement.ranks
        ]
        self.first_on = [
            {stage for stage in range(num_stages) if ranks.index(ranks[stage]) == stage} for ranks in placement.ranks
        ]
        self.backward: list[list[_ListJob]] = [[] for _ in range(num_ranks)]
        self.forward: list[list[_ListJob]] = [[] for _ in range(num_ranks)]
        self.weights: list[deque[_ListJob]] = [deque() for _ in range(num_ranks)]
        self.kept = [0] * num_ranks
        self.is_busy = [False] * num_ranks
        self.actions: list[list[Action]] = [[] for _ in range(num_ranks)]
        self.events: list[tuple[float, int, int, _ListJob | None]] = []  # time, order, rank, job that becomes ready
        self.num_events = 0
        self.now = 0.0
        self.peak = 0  # activations, on any rank

    def run(self) -> PipelineSchedule:
        width = self.rule.forward_width
        for pipe, batch_numbers in enumerate(self.micro_batches):
            for index in range(-(-len(batch_numbers) // width)):
                self._ready(0.0, "F", 0, pipe, index)
        while self.events:
            now = self.now = self.events[0][0]
            ranks = set()
            while self.events and self.events[0][0] <= now:
                _, _, rank, job = heapq.heappop(self.events)
                ranks.add(rank)
                if job is None:
                    self.is_busy[rank] = False
                elif job.kind == "F":
                    heapq.heappush(self.forward[rank], job)
                else:
                    heapq.heappush(self.backward[rank], job)
            for rank in ranks:
                if not self.is_busy[rank]:
                    self._begin(now, rank)
        if any(self.forward) or any(self.backward):
            raise InvalidArgument(
                f"most_kept={self.rule.most_kept} activations per rank are too few for any micro-batch"
            )
        num_micro_batches = sum(len(each) for each in self.micro_batches)
        return PipelineSchedule("list", self.placement, num_micro_batches, tuple(tuple(row) for row in self.actions))

    def _begin(self, now: float, rank: int) -> None:
        """Start the most urgent ready action of a rank, if any."""
        job = self._choose(rank)
        if job is None:
            return
        _, kind, stage, pipe, index = job
        batch_numbers = self.micro_batches[pipe]
        group = self.rule.forward_width
        first, width = (index * group, min(group, len(batch_numbers) - index * group)) if kind == "F" else (index, 1)
        if kind == "F" and stage in self.first_on[pipe]:
            self.kept[rank] += width * self.stages_on[pipe][rank]
            self.peak = max(self.peak, self.kept[rank])
        if kind in "BW":
            self.kept[rank] -= 1
        self.actions[rank].append(Action(kind, stage, batch_numbers[first], width, pipe))
        end = now + self.seconds[kind][stage] * width
        self.is_busy[rank] = True
        self._push(end, rank, None)
        last_stage = self.placement.num_stages - 1
        gradient = "I" if self.rule.splits_backward else "B"
        if kind == "F" and stage < last_stage:
            self._ready(end, "F", stage + 1, pipe, index, rank)
        elif kind == "F":
            for each in range(first, first + width):
                self._ready(end, gradient, stage, pipe, each)
        elif kind in "BI":
            if kind == "I":
                self.weights[rank].append(_ListJob((0, 0), "W", stage, pipe, index))
            if stage:
                self._ready(end, gradient, stage - 1, pipe, index, rank)

    def _choose(self, rank: int) -> _ListJob | None:
        is_eager = self.kept[rank] < self.rule.eager_until
        for heap in (self.forward, self.backward) if is_eager else (self.backward, self.forward):
            jobs = heap[rank]
            if jobs and (heap is self.backward or self._has_room(rank, jobs[0])):
                return heapq.heappop(jobs)
        inside = [job for job in self.forward[rank] if job.stage not in self.first_on[job.pipe]]
        if inside:  # its room was reserved when the micro-batch reached this rank
            self.forward[rank].remove(min(inside))
            heapq.heapify(self.forward[rank])
            return min(inside)
        return self.weights[rank].popleft() if self.weights[rank] else None

    def _has_room(self, rank: int, job: _ListJob) -> bool:
        if self.rule.most_kept is None or job.stage not in self.first_on[job.pipe]:
            return True
        more = self.rule.forward_width * self.stages_on[job.pipe][rank]
        return self.kept[rank] + more <= self.rule.most_kept

    def _ready(self, now: float, kind: str, stage: int, pipe: int, index: int, source: int | None = None) -> None:
        rank = self.placement.ranks[pipe][stage]
        edge = stage if kind == "F" else stage + 1
        delay = 0.0 if source is None or source == rank else self.delays_s[pipe][edge]
        age = index * self.rule.forward_width if kind == "F" else index
        self._push(now + delay, rank, _ListJob((age, -stage), kind, stage, pipe, index))

    def _push(self, time: float, rank: int, job: _ListJob | None) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time, self.num_events, rank, job))

    def _delays(self, costs: CostModel) -> list[list[float]]:
        """Return for every pipe and stage the seconds of a message from the previous stage."""
        fabric = costs.network()
        num_stages = self.placement.num_stages
        if fabric is None:
            return [[0.0] * num_stages for _ in self.placement.ranks]
        nbytes = per_stage(costs.message_nbytes, num_stages, "message_nbytes")
        delays_s = [[0.0] for _ in self.placement.ranks]
        for delays, ranks in zip(delays_s, self.placement.ranks, strict=True):
            for (first, second), size in zip(pairwise(ranks), nbytes, strict=False):
                cost = fabric.message_cost(first, second, math.ceil(size))
                delays.append(cost.latency_s + cost.occupied_s if first != second else 0.0)
        return delays_s
