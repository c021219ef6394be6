"""Choose schedule, depth, width and micro-batch size: rank all that fit by simulation of their tables."""

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
    """One configuration of a pipeline, and its simulated time and memory.

    Args:
        name, parameters: name and parameters of the schedule.
        num_ranks: D, ranks of one pipeline.
        num_replicas: W, replicas of the pipeline.
        num_micro_batches: N, micro-batches per replica and step.
        micro_batch_size: samples per micro-batch.
        recomputes: whether forward passes are recomputed before backward passes.
        step_s: seconds of a step, by simulation.
        model_s: seconds of a step, by the formula of `predict_step_s`.
        bubble: idle share of the step.
        peak_nbytes: largest number of bytes that any rank holds.

    Examples:
        >>> model = hk.pipeline.ModelCosts(num_layers=8, forward_s=0.001)
        >>> best, *_ = hk.pipeline.choose(model, num_ranks=4, batch_size=16, names=["1f1b", "zb-h1"])
        >>> best.name, best.num_ranks, best.num_replicas, best.num_micro_batches
        ('1f1b', 1, 4, 2)
        >>> best.schedule()
        <1f1b: 1 ranks, 2 micro-batches>
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
        """Samples per second of all replicas together."""
        return self.num_replicas * self.num_micro_batches * self.micro_batch_size / self.step_s

    def schedule(self) -> PipelineSchedule:
        """Build the table of one replica, without gradient synchronisation."""
        schedule = find_recipe(self.name).schedule(self.num_ranks, self.num_micro_batches, **self.parameters)
        return recompute(schedule) if self.recomputes else schedule


@dataclass(frozen=True)
class _Plan:
    """One configuration to simulate."""

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
    """Rank all pipeline configurations for a number of ranks, the fastest first.

    The search covers all depths D that divide the ranks (W = P/D replicas of a pipeline of D), all schedules with the
    parameters in `Recipe.choices`, micro-batches of 1, 2, 4, ... samples, with and without recomputation. A
    configuration is skipped if its work alone takes longer than the slowest of the best.

    Args:
        model: costs of the layers.
        num_ranks: P, ranks in total.
        batch_size: samples per step, over all replicas.
        limit_nbytes: memory limit of a rank; None: unlimited.
        fabric: network between the ranks; None: messages take no time.
        names: schedules to try; all if not given.
        micro_batch_sizes: sizes to try.
        num_best: number of candidates to return.
        report: progress callback, called with the number of finished and of all configurations.

    Returns:
        Up to `num_best` candidates, the fastest first.

    Raises:
        InvalidArgument: no configuration fits; the error names the smallest limit that would be enough.

    Examples:
        >>> model = hk.pipeline.ModelCosts(num_layers=8, forward_s=0.001, weight_nbytes=1e9, activation_nbytes=1e8)
        >>> for best in hk.pipeline.choose(model, num_ranks=4, batch_size=16, limit_nbytes=4e9, num_best=2):
        ...     print(best.name, best.num_ranks, f"{best.step_s:.3f} s, bubble {best.bubble:.0%}")
        list 4 0.099 s, bubble 3%
        zb-v 4 0.099 s, bubble 3%
    """
    tried = [find_recipe(name) for name in names] if names is not None else recipes()
    for what, value in (("num_ranks", num_ranks), ("batch_size", batch_size), ("num_best", num_best)):
        if value < 1:
            raise InvalidArgument(f"{what} must be 1 or more, got {value}")
    plans = list(_plans(model, tried, num_ranks, batch_size, micro_batch_sizes))
    if not plans:
        raise InvalidArgument(
            f"cannot split a batch of {batch_size} samples for {num_ranks} ranks and {model.num_layers} layers with "
            f"{', '.join(each.name for each in tried)}: the depth must divide the number of ranks, the micro-batch "
            "size the batch of a replica"
        )
    costs: dict[tuple[int, int, int], CostModel] = {}

    def costs_of(plan: _Plan, num_stages: int) -> CostModel:
        key = (num_stages, plan.micro_batch_size, plan.num_replicas)
        if key not in costs:
            costs[key] = model.stages(num_stages, plan.micro_batch_size, fabric=fabric, num_replicas=plan.num_replicas)
        return costs[key]

    plans.sort(key=lambda plan: _least_s(plan, costs_of(plan, plan.num_ranks)))
    best: list[tuple[float, int, Candidate]] = []  # a heap with the slowest on top
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
        candidate = _simulate_plan(plan, schedule, stage_costs, peak)
        heapq.heappush(best, (-candidate.step_s, -number, candidate))
        if len(best) > num_best:
            heapq.heappop(best)
    report(len(plans), len(plans))
    if not best and least_limit == float("inf"):
        raise InvalidArgument(
            f"a model of {model.num_layers} layers has fewer layers than any schedule tried has stages"
        )
    if not best:
        raise InvalidArgument(
            f"no configuration fits into {limit_nbytes:.6g} bytes per rank; the smallest needs {least_limit:.6g}"
        )
    return [candidate for _, _, candidate in sorted(best, reverse=True)]


def _simulate_plan(plan: _Plan, schedule: PipelineSchedule, costs: CostModel, peak: float) -> Candidate:
    synchronised = add_gradient_sync(schedule, costs=costs)
    timeline = simulate(synchronised, costs)
    return Candidate(
        plan.recipe.name,
        plan.parameters,
        plan.num_ranks,
        plan.num_replicas,
        plan.num_micro_batches,
        plan.micro_batch_size,
        plan.recomputes,
        timeline.makespan_s,
        predict_step_s(synchronised, costs),
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
        replica_batch = batch_size // (num_ranks // depth)
        sizes = micro_batch_sizes or [1 << power for power in range(replica_batch.bit_length())]
        for size in sizes:
            if size < 1 or replica_batch % size:
                continue
            for recipe in tried:
                for parameters in recipe.variants():
                    # "halving" makes 2N micro-batches of half the size, which other plans cover already.
                    if recipe.refusal(depth, replica_batch // size, **parameters) is None:
                        for recomputes in (False, True):
                            yield _Plan(
                                recipe, parameters, depth, num_ranks // depth, replica_batch // size, size, recomputes
                            )


def _least_s(plan: _Plan, costs: CostModel) -> float:
    """Return a lower bound for a step: its work, spread evenly over the ranks of a pipeline."""
    names = ("F", "B", "R") if plan.recomputes else ("F", "B")
    work_s = sum(float(costs.seconds_of(name, plan.num_ranks).sum()) for name in names)
    return work_s * plan.num_micro_batches / plan.num_ranks
