"""The chosen candidates agree with simulation, fit into memory, and are the best of all configurations."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from hocket.errors import InvalidArgument
from hocket.pipeline import CostModel, add_gradient_sync, build, recipes, recompute, simulate
from hocket.pipeline.choosing import choose
from hocket.pipeline.model_costs import ModelCosts
from hocket.pipeline.partition import bottleneck_partition
from hocket.pipeline.performance_model import predict_step_s
from hocket.sim import Link

from ..naming import assert_names, raises
from ..tier import sample

pytestmark = pytest.mark.timeout(120)

MODEL = ModelCosts(
    8, 1e-3, overhead_s=5e-4, weight_nbytes=100.0, gradient_nbytes=1e5, activation_nbytes=10.0, output_nbytes=1e4
)
LINK = Link.of(10.0, 1.0)


def test_partition_is_optimal() -> None:
    draw = random.Random("partition")
    for _ in range(200):
        num_layers = draw.randrange(1, 10)
        num_parts = draw.randrange(1, num_layers + 1)
        costs = [draw.choice([0.0, 0.1, 0.7, 1.0, 3.3, draw.random()]) for _ in range(num_layers)]
        cuts = bottleneck_partition(costs, num_parts)
        assert (cuts[0], cuts[-1], len(cuts)) == (0, num_layers, num_parts + 1)
        assert all(first < last for first, last in itertools.pairwise(cuts))
        best = min(
            max(sum(costs[first:last]) for first, last in itertools.pairwise((0, *inner, num_layers)))
            for inner in itertools.combinations(range(1, num_layers), num_parts - 1)
        )
        assert max(sum(costs[first:last]) for first, last in itertools.pairwise(cuts)) == pytest.approx(best)
    assert bottleneck_partition([1.0] * 3339, 128)[1] in (26, 27)
    for costs, parts, names in (([1.0], 2, ("1", "2")), ([-1.0], 1, "0")):
        with raises(InvalidArgument, names=names):
            bottleneck_partition(costs, parts)


def test_the_best_are_those_of_an_exhaustive_search() -> None:
    """Brute force: simulate every depth, schedule, micro-batch size and recomputation."""
    for limit in sample((None, 420.0), 1):
        found = choose(MODEL, 4, 8, limit_nbytes=limit, fabric=LINK, num_best=5)
        times = []
        for depth, size in itertools.product((1, 2, 4), (1, 2, 4, 8)):
            replicas = 4 // depth
            if 8 % (replicas * size):
                continue
            for recipe in recipes():
                for parameters in recipe.variants():
                    number = 8 // (replicas * size)
                    if recipe.refusal(depth, number, **parameters):
                        continue
                    schedule = recipe.schedule(depth, number, **parameters)
                    if schedule.num_stages > MODEL.num_layers:
                        continue
                    costs = MODEL.stages(schedule.num_stages, size, fabric=LINK, num_replicas=replicas)
                    for table in (schedule, recompute(schedule)):
                        timeline = simulate(add_gradient_sync(table, costs=costs), costs)
                        if limit is None or timeline.peak_nbytes.max() <= limit:
                            times.append(timeline.makespan_s)
        assert [each.step_s for each in found] == pytest.approx(sorted(times)[:5])
        if limit is not None:
            assert all(each.peak_nbytes <= limit for each in found)
        best = found[0]
        assert best.samples_per_s == pytest.approx(8 / best.step_s)
        assert best.schedule().num_micro_batches * best.micro_batch_size * best.num_replicas == 8


def test_the_error_names_a_limit_that_is_enough() -> None:
    with raises(InvalidArgument, names="10") as caught:
        choose(MODEL, 4, 8, limit_nbytes=10.0)
    (least,) = {float(number) for number in re.findall(r"[\d.]+\b", str(caught.value))} - {10.0}
    assert choose(MODEL, 4, 8, limit_nbytes=least * 1.00001)
    with raises(InvalidArgument, names="10") as caught:
        choose(MODEL, 4, 8, limit_nbytes=10.0, names=["1f1b", "gpipe"])
    assert_names(str(caught.value), "280")
    with raises(InvalidArgument, names=("8", "4", "1f1b", "zb-v")):
        choose(MODEL, 4, 8, micro_batch_sizes=[3])
    with raises(InvalidArgument, names=("'mine'", "1f1b")):
        choose(MODEL, 4, 8, names=["mine"])
    with raises(InvalidArgument, names=("batch_size", "1", "0")):
        choose(MODEL, 4, 0)
    with raises(InvalidArgument, names=("forward_s", "8", "3")):
        ModelCosts(8, [1.0, 2.0, 3.0])


def test_stages_add_up() -> None:
    """The seconds and bytes of all stages sum to those of the layers."""
    model = ModelCosts(
        5, [1.0, 2.0, 3.0, 4.0, 5.0], overhead_s=0.5, weight_nbytes=7.0, activation_nbytes=[1, 2, 3, 4, 5],
        output_nbytes=[10, 20, 30, 40, 50],
    )  # fmt: skip
    costs = model.stages(3, 2)
    assert costs.seconds_of("F", 3).sum() == 2 * 15 + 5 * 0.5
    assert costs.seconds_of("B", 3).sum() == 2 * 30 + 5 * 0.5
    assert (costs.seconds_of("I", 3) + costs.seconds_of("W", 3)).sum() == costs.seconds_of("B", 3).sum()
    assert costs.stash_nbytes_of("activation", 3).sum() == 2 * 15
    assert sum(costs.weight_nbytes) == 35.0  # type: ignore[arg-type]
    assert costs.message_nbytes == [60.0, 80.0, 100.0]  # cut after layers 3 and 4


def test_the_formula_of_the_paper() -> None:
    """T = (F + p2p) C_f + (B + p2p) C_b + the longest exposed gradient sum, C_f = D and C_b = 2D - 2."""
    for num_ranks in (4, 8):
        schedule = build("chimera", num_ranks, num_ranks)
        link = Link(0.01, 0.001)
        costs = CostModel(seconds={"F": 1.0, "B": 2.0}, fabric=link, message_nbytes=10.0, gradient_nbytes=1000.0)
        synced = add_gradient_sync(schedule, "eager-opt", costs)
        message_s = 0.01 + 0.01
        sum_s = 2 * 0.01 + 1000 * 0.001
        expected = (1 + message_s) * num_ranks + (2 + message_s) * (2 * num_ranks - 2)
        # The middle stages end last, and their ranks have no later work, so no bubble hides their sum.
        assert predict_step_s(synced, costs) == pytest.approx(expected + sum_s)
        assert predict_step_s(schedule, CostModel()) == simulate(schedule).makespan_s
    assert predict_step_s(build("1f1b", 4, 8), CostModel()) == 33.0
