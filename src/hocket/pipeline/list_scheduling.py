"""List scheduling: the clock runs, and a rank that is free takes what is most urgent among what is ready."""

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
    """How a rank chooses.

    Args:
        most_kept: activations (one micro-batch of one stage) that a rank keeps at a time; None: as many as come.
        eager_until: with fewer activations than these a rank takes a forward pass before a backward pass.
        splits_backward: weight gradients apart, for when there is nothing else to do.
        forward_width: micro-batches of a forward pass.
    """

    most_kept: int | None = None
    eager_until: int = 0
    splits_backward: bool = False
    forward_width: int = 1

    def __post_init__(self) -> None:
        if self.forward_width < 1 or (self.most_kept is not None and self.most_kept < 1):
            raise InvalidArgument(
                f"forward_width and most_kept are 1 or more, not {self.forward_width} and {self.most_kept}"
            )


class _ListJob(NamedTuple):
    """An action in a heap: the least one is the most urgent."""

    urgency: tuple[int, int]
    kind: str
    stage: int
    pipe: int
    turn: int  # of the micro-batch in its pipe; for a forward pass, of its group


def search_list_schedule(
    placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel | None = None, rule: Rule = Rule()
) -> PipelineSchedule:
    """Make list schedules that begin more or less eagerly, and return the fastest; of several, what keeps least.

    Args:
        placement, micro_batches, costs: as for `list_schedule`.
        rule: of all of them, but for how eager they are.
    """
    costs = costs or CostModel()
    held = max(len(placement.stages_of(rank)) for rank in range(placement.num_ranks))
    whole = max(placement.num_ranks * held // placement.num_pipes, held * rule.forward_width)
    caps = {cap for cap in (whole, whole * 3 // 2, 2 * whole) if rule.most_kept is None or cap < rule.most_kept}
    least_s = lower_bound_s(
        placement, [len(each) for each in micro_batches], costs, splits_backward=rule.splits_backward
    )
    found: list[tuple[float, int, int, PipelineSchedule]] = []
    for cap in sorted(caps | ({rule.most_kept} if rule.most_kept else set())):
        for eager_until in sorted({0, whole // 2, whole - 2, whole - 1, whole}):
            scheduler = _ListScheduler(
                placement, micro_batches, costs, replace(rule, most_kept=cap, eager_until=eager_until)
            )
            try:
                schedule = scheduler.run()
            except InvalidArgument:
                continue  # too few activations for this placement; others remain, or all are refused below
            # The scheduler's own clock knows no ways out that are taken.
            end_s = scheduler.now if costs.fabric is None else simulate(schedule, costs).makespan_s
            found.append((end_s, scheduler.peak, len(found), schedule))
            if end_s <= least_s * (1 + 1e-12):
                return min(found)[-1]  # none is faster, and more eager ones keep no less
    if not found and rule.most_kept is None:
        return list_schedule(placement, micro_batches, costs, rule)
    if not found:
        raise InvalidArgument(f"with {rule.most_kept} activations a rank no micro-batch gets through")
    return min(found)[-1]


def list_schedule(
    placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel | None = None, rule: Rule = Rule()
) -> PipelineSchedule:
    """Make a schedule for a chain of stages by running it: gradients before forward passes, the oldest first.

    Args:
        placement: of the stages.
        micro_batches: of every pipe, in their order.
        costs: by which the clock runs.
        rule: how ranks choose.

    Raises:
        InvalidArgument: ranks may keep too few activations for any micro-batch to get through.
    """
    return _ListScheduler(placement, micro_batches, costs or CostModel(), rule).run()


class _ListScheduler:
    def __init__(
        self, placement: Placement, micro_batches: Sequence[Sequence[int]], costs: CostModel, rule: Rule
    ) -> None:
        if len(micro_batches) != placement.num_pipes:
            raise InvalidArgument(f"there are {placement.num_pipes} pipes, and micro-batches for {len(micro_batches)}")
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
        self.events: list[tuple[float, int, int, _ListJob | None]] = []  # time, order, rank, what is ready there
        self.num_events = 0
        self.now = 0.0
        self.peak = 0  # activations, on any rank

    def run(self) -> PipelineSchedule:
        width = self.rule.forward_width
        for pipe, of_pipe in enumerate(self.micro_batches):
            for turn in range(-(-len(of_pipe) // width)):
                self._ready(0.0, "F", 0, pipe, turn)
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
            raise InvalidArgument(f"with {self.rule.most_kept} activations a rank no micro-batch gets through")
        num_micro_batches = sum(len(each) for each in self.micro_batches)
        return PipelineSchedule("list", self.placement, num_micro_batches, tuple(tuple(row) for row in self.actions))

    def _begin(self, now: float, rank: int) -> None:
        """Begin the most urgent action that is ready on a rank, if there is one."""
        job = self._choose(rank)
        if job is None:
            return
        _, kind, stage, pipe, turn = job
        there = self.micro_batches[pipe]
        most = self.rule.forward_width
        first, width = (turn * most, min(most, len(there) - turn * most)) if kind == "F" else (turn, 1)
        if kind == "F" and stage in self.first_on[pipe]:
            self.kept[rank] += width * self.stages_on[pipe][rank]
            self.peak = max(self.peak, self.kept[rank])
        if kind in "BW":
            self.kept[rank] -= 1
        self.actions[rank].append(Action(kind, stage, there[first], width, pipe))
        end = now + self.seconds[kind][stage] * width
        self.is_busy[rank] = True
        self._push(end, rank, None)
        last_stage = self.placement.num_stages - 1
        gradient = "I" if self.rule.splits_backward else "B"
        if kind == "F" and stage < last_stage:
            self._ready(end, "F", stage + 1, pipe, turn, rank)
        elif kind == "F":
            for each in range(first, first + width):
                self._ready(end, gradient, stage, pipe, each)
        elif kind in "BI":
            if kind == "I":
                self.weights[rank].append(_ListJob((0, 0), "W", stage, pipe, turn))
            if stage:
                self._ready(end, gradient, stage - 1, pipe, turn, rank)

    def _choose(self, rank: int) -> _ListJob | None:
        is_eager = self.kept[rank] < self.rule.eager_until
        for heap in (self.forward, self.backward) if is_eager else (self.backward, self.forward):
            jobs = heap[rank]
            if jobs and (heap is self.backward or self._has_room(rank, jobs[0])):
                return heapq.heappop(jobs)
        inside = [job for job in self.forward[rank] if job.stage not in self.first_on[job.pipe]]
        if inside:  # its room is kept since the micro-batch came to this rank
            self.forward[rank].remove(min(inside))
            heapq.heapify(self.forward[rank])
            return min(inside)
        return self.weights[rank].popleft() if self.weights[rank] else None

    def _has_room(self, rank: int, job: _ListJob) -> bool:
        if self.rule.most_kept is None or job.stage not in self.first_on[job.pipe]:
            return True
        more = self.rule.forward_width * self.stages_on[job.pipe][rank]
        return self.kept[rank] + more <= self.rule.most_kept

    def _ready(self, now: float, kind: str, stage: int, pipe: int, turn: int, source: int | None = None) -> None:
        rank = self.placement.ranks[pipe][stage]
        edge = stage if kind == "F" else stage + 1
        delay = 0.0 if source is None or source == rank else self.delays_s[pipe][edge]
        age = turn * self.rule.forward_width if kind == "F" else turn
        self._push(now + delay, rank, _ListJob((age, -stage), kind, stage, pipe, turn))

    def _push(self, time: float, rank: int, job: _ListJob | None) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time, self.num_events, rank, job))

    def _delays(self, costs: CostModel) -> list[list[float]]:
        """Of every pipe and stage, the seconds of a message to it from the stage before."""
        fabric = costs.network()
        num_stages = self.placement.num_stages
        if fabric is None:
            return [[0.0] * num_stages for _ in self.placement.ranks]
        nbytes = per_stage(costs.message_nbytes, num_stages, "message_nbytes")
        found = [[0.0] for _ in self.placement.ranks]
        for delays, ranks in zip(found, self.placement.ranks, strict=True):
            for (first, second), size in zip(pairwise(ranks), nbytes, strict=False):
                cost = fabric.message_cost(first, second, math.ceil(size))
                delays.append(cost.latency_s + cost.occupied_s if first != second else 0.0)
        return found
