"""Which schedule, depth, width and micro-batch size: all that fit, ranked by the simulation of their tables."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.memory import memory_use
from hocket.pipeline.model_costs import ModelCosts
from hocket.pipeline.passes.gradient_sync import add_gradient_sync
from hocket.pipeline.passes.recompute import recompute
from hocket.pipeline.performance_model import predict_step_s
from hocket.pipeline.registry import Recipe, find_recipe, recipes
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate
from hocket.sim import Fabric, Link


@dataclass(frozen=True)
class Candidate:
    """One way to train, and what it takes. Simulated, not measured.

    Args:
        name, parameters: of the schedule.
        num_ranks: D, of one pipeline.
        num_replicas: W, of it.
        num_micro_batches: N, of one replica and step.
        micro_batch_size: samples.
        recomputes: whether forward passes are done again.
        step_s: by simulation.
        model_s: by the formula of `predict_step_s`.
        bubble: of the step.
        peak_nbytes: that any rank holds.
    """

    name: str
    parameters: Mapping[str, Any]
    num_ranks: int
    num_replicas: int
    num_micro_batches: int
    micro_batch_size: int
    recomputes: bool
    step_s: float
    model_s: float
    bubble: float
    peak_nbytes: float

    @property
    def samples_per_s(self) -> float:
        """Of all replicas."""
        return self.num_replicas * self.num_micro_batches * self.micro_batch_size / self.step_s

    def schedule(self) -> PipelineSchedule:
        """Build its table, of one replica, without sums of gradients."""
        made = find_recipe(self.name).schedule(self.num_ranks, self.num_micro_batches, **self.parameters)
        return recompute(made) if self.recomputes else made


@dataclass(frozen=True)
class _Plan:
    """What there is to try."""

    recipe: Recipe
    parameters: dict[str, Any]
    num_ranks: int
    num_replicas: int
    num_micro_batches: int
    micro_batch_size: int
    recomputes: bool


def choose(
    model: ModelCosts,
    num_ranks: int,
    batch_size: int,
    *,
    limit_nbytes: float | None = None,
    fabric: Fabric | Link | None = None,
    names: Sequence[str] | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    num_best: int = 10,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Candidate]:
    """Rank all ways to run a pipeline on so many ranks, the fastest first.

    Tried are all depths D that divide the ranks (W = P/D replicas of a pipeline of D), all schedules with the
    parameters that they name, micro-batches of 1, 2, 4, ... samples, with forward passes done again or not. What
    cannot come among the best is left out: no rank is faster than its work.

    Args:
        model: what layers cost.
        num_ranks: P.
        batch_size: samples of a step, over all replicas.
        limit_nbytes: that a rank may hold.
        fabric: what connects the ranks.
        names: of schedules to try; all if not given.
        micro_batch_sizes: to try.
        num_best: how many to return.
        report: called with how many are done, and of how many.

    Raises:
        InvalidArgument: nothing fits: says the least limit that something would fit into.
    """
    tried = [find_recipe(name) for name in names] if names is not None else recipes()
    for what, value in (("num_ranks", num_ranks), ("batch_size", batch_size), ("num_best", num_best)):
        if value < 1:
            raise InvalidArgument(f"{what} is 1 or more, not {value}")
    plans = list(_plans(model, tried, num_ranks, batch_size, micro_batch_sizes))
    if not plans:
        raise InvalidArgument(
            f"a batch of {batch_size} samples cannot be cut for {num_ranks} ranks and {model.num_layers} layers by "
            f"{', '.join(each.name for each in tried)}: a depth divides the ranks, micro-batches divide what is left"
        )
    costs: dict[tuple[int, int, int], CostModel] = {}

    def costs_of(plan: _Plan, num_stages: int) -> CostModel:
        key = (num_stages, plan.micro_batch_size, plan.num_replicas)
        if key not in costs:
            costs[key] = model.stages(num_stages, plan.micro_batch_size, fabric=fabric, num_replicas=plan.num_replicas)
        return costs[key]

    plans.sort(key=lambda plan: _least_s(plan, costs_of(plan, plan.num_ranks)))
    best: list[tuple[float, int, Candidate]] = []  # the slowest of the best first
    least_limit = float("inf")
    for number, plan in enumerate(plans):
        report(number, len(plans))
        slowest = -best[0][0] if len(best) == num_best else float("inf")
        if _least_s(plan, costs_of(plan, plan.num_ranks)) > slowest:
            break
        schedule = plan.recipe.schedule(plan.num_ranks, plan.num_micro_batches, **plan.parameters)
        if schedule.num_stages > model.num_layers:
            continue
        stage_costs = costs_of(plan, schedule.num_stages)
        if plan.recomputes:
            schedule = recompute(schedule)
        peak = float(memory_use(schedule, stage_costs).peak_nbytes.max())
        least_limit = min(least_limit, peak)
        if limit_nbytes is not None and peak > limit_nbytes:
            continue
        candidate = _simulated(plan, schedule, stage_costs, peak)
        heapq.heappush(best, (-candidate.step_s, -number, candidate))
        if len(best) > num_best:
            heapq.heappop(best)
    report(len(plans), len(plans))
    if not best and least_limit == float("inf"):
        raise InvalidArgument(f"{model.num_layers} layers are fewer than the stages of any schedule that was tried")
    if not best:
        raise InvalidArgument(
            f"nothing fits into {limit_nbytes:.6g} bytes a rank; {least_limit:.6g} would do for one that was tried"
        )
    return [candidate for _, _, candidate in sorted(best, reverse=True)]


def _simulated(plan: _Plan, schedule: PipelineSchedule, costs: CostModel, peak: float) -> Candidate:
    whole = add_gradient_sync(schedule, costs=costs)
    timeline = simulate(whole, costs)
    return Candidate(
        plan.recipe.name,
        plan.parameters,
        plan.num_ranks,
        plan.num_replicas,
        plan.num_micro_batches,
        plan.micro_batch_size,
        plan.recomputes,
        timeline.makespan_s,
        predict_step_s(whole, costs),
        timeline.bubble(),
        peak,
    )


def _plans(
    model: ModelCosts,
    tried: Sequence[Recipe],
    num_ranks: int,
    batch_size: int,
    micro_batch_sizes: Sequence[int] | None,
) -> Iterator[_Plan]:
    for depth in range(1, min(num_ranks, model.num_layers) + 1):
        if num_ranks % depth or batch_size % (num_ranks // depth):
            continue
        of_replica = batch_size // (num_ranks // depth)
        sizes = micro_batch_sizes or [1 << power for power in range(of_replica.bit_length())]
        for size in sizes:
            if size < 1 or of_replica % size:
                continue
            for recipe in tried:
                for parameters in recipe.variants():
                    # The table of halved micro-batches counts halves: the same as twice as many of half the size.
                    if recipe.refusal(depth, of_replica // size, **parameters) is None:
                        for recomputes in (False, True):
                            yield _Plan(
                                recipe, parameters, depth, num_ranks // depth, of_replica // size, size, recomputes
                            )


def _least_s(plan: _Plan, costs: CostModel) -> float:
    """What the work of a step takes at least, spread evenly over the ranks of a pipeline."""
    names = ("F", "B", "R") if plan.recomputes else ("F", "B")
    work_s = sum(float(costs.seconds_of(name, plan.num_ranks).sum()) for name in names)
    return work_s * plan.num_micro_batches / plan.num_ranks
