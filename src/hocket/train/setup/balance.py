"""Where to cut a model: stages alike in what they cost, then moved a little where a simulated step becomes shorter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hocket.pipeline.partition import bottleneck_partition
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate
from hocket.sim import Fabric, Link
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.setup.layer_costs import StageCosts, costs_of_stages, count_flops

_MOST_SIMULATIONS = 200


def parameter_counts(graph: LayerGraph) -> list[float]:
    """Return the parameters of every layer; those that layers share count for the first. A layer without any counts
    as one, so that none is taken to cost nothing."""
    seen: set[int] = set()
    found = []
    for layer in graph.layers:
        new = [each for each in layer.parameters.values() if id(each) not in seen]
        seen.update(map(id, new))
        found.append(1.0 + sum(each.numel() for each in new))
    return found


BALANCES: Mapping[str, Callable[[LayerGraph, Mapping[str, Any]], list[float]]] = {
    "params": lambda graph, inputs: parameter_counts(graph),
    "flops": count_flops,
}


def count_costs(balance: str, graph: LayerGraph, inputs: Mapping[str, Any]) -> list[float]:
    """Return a number for every layer, by which stages are made alike.

    Args:
        balance: "params" or "flops".
        graph: of the model.
        inputs: a micro-batch, for "flops".
    """
    return BALANCES[balance](graph, inputs)


def join_layers(graph: LayerGraph, layers: Sequence[StageCosts], cuts: Sequence[int]) -> list[StageCosts]:
    """Return what stages cost that are made of measured layers."""
    sizes = {layer.name: costs.output_nbytes for layer, costs in zip(graph.layers, layers, strict=True)}
    joined = []
    for first, last in pairwise(cuts):
        part = layers[first:last]
        crossing = graph.crossing(last) if last < len(graph.layers) else list(graph.outputs)
        joined.append(
            StageCosts(
                **{name: sum(getattr(each, name) for each in part) for name in _SUMMED},
                output_nbytes=sum(sizes.get(name, 0.0) for name in crossing),
            )
        )
    return joined


_SUMMED = ("forward_s", "backward_s", "input_s", "weight_s", "weight_nbytes", "activation_nbytes",
           "kept_gradient_nbytes")  # fmt: skip


def balance_by_time(
    graph: LayerGraph,
    layers: Sequence[StageCosts],
    schedule: PipelineSchedule,
    *,
    fabric: Fabric | Link | None = None,
    num_replicas: int = 1,
) -> list[int]:
    """Cut a model so that a simulated step is short.

    Begins with the cuts whose longest stage is shortest, and moves one cut at a time as long as that helps: a stage at
    the end of a pipeline may be longer, and a cut that fewer bytes cross is worth a longer stage.

    Args:
        graph: of the model.
        layers: what they cost, measured.
        schedule: of one replica.
        fabric, num_replicas: as of `CostModel`.

    Returns:
        Where stages begin, and the number of layers.
    """
    cuts = bottleneck_partition([each.forward_s + each.backward_s for each in layers], schedule.num_stages)
    known: dict[tuple[int, ...], float] = {}

    def seconds(tried: list[int]) -> float:
        key = tuple(tried)
        if key not in known:
            costs = costs_of_stages(join_layers(graph, layers, tried), fabric=fabric, num_replicas=num_replicas)
            known[key] = simulate(schedule, costs).makespan_s
        return known[key]

    step = max(1, len(graph.layers) // (4 * schedule.num_stages))
    while step and len(known) < _MOST_SIMULATIONS:
        tries = [moved for place in range(1, len(cuts) - 1) for moved in _moved(cuts, place, step)]
        best = min(tries, key=seconds, default=cuts)
        if seconds(best) < seconds(cuts):
            cuts = best
        else:
            step //= 2
    return cuts


def _moved(cuts: list[int], place: int, step: int) -> list[list[int]]:
    """The cuts with one of them moved, either way."""
    found = []
    for way in (-step, step):
        cut = cuts[place] + way
        if cuts[place - 1] < cut < cuts[place + 1]:
            found.append([*cuts[:place], cut, *cuts[place + 1 :]])
    return found
