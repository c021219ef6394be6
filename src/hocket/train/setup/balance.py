"""Cuts of a model: stages of nearly equal costs, then moved while that shortens a simulated step."""

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
    """Return 1 + the number of parameters of every layer; shared parameters count for the first layer.

    The 1 is the cost of a layer without parameters.
    """
    seen: set[int] = set()
    counts = []
    for layer in graph.layers:
        new = [each for each in layer.parameters.values() if id(each) not in seen]
        seen.update(map(id, new))
        counts.append(1.0 + sum(each.numel() for each in new))
    return counts


BALANCES: Mapping[str, Callable[[LayerGraph, Mapping[str, Any]], list[float]]] = {
    "params": lambda graph, inputs: parameter_counts(graph),
    "flops": count_flops,
}


def count_costs(balance: str, graph: LayerGraph, inputs: Mapping[str, Any]) -> list[float]:
    """Return a cost for every layer, for equal sums in all stages.

    Args:
        balance: "params" or "flops".
        graph: layers of the model.
        inputs: inputs of a micro-batch, for "flops".
    """
    return BALANCES[balance](graph, inputs)


def join_layers(graph: LayerGraph, layers: Sequence[StageCosts], cuts: Sequence[int]) -> list[StageCosts]:
    """Return the costs of stages from the measured costs of their layers."""
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
    """Return cuts of a model for which a simulated step is short.

    The search starts at the cuts that minimise the longest stage, and moves one cut at a time while that shortens the
    step: a stage at the end of a pipeline may be longer, and fewer bytes across a cut can outweigh a longer stage.

    Args:
        graph: layers of the model.
        layers: measured costs of the layers.
        schedule: schedule of one replica.
        fabric, num_replicas: see `CostModel`.

    Returns:
        The index of the first layer of each stage, and the number of layers at the end.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)]))
        >>> layers = [hk.train.StageCosts(each, 2 * each, each, each, 0, 0, 0, 0) for each in (1.0, 1.0, 1.0, 3.0)]
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=4)
        >>> hk.train.balance_by_time(graph, layers, schedule)
        [0, 3, 4]
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
    """Return the cuts with one of them moved down or up by `step` layers."""
    moved = []
    for offset in (-step, step):
        cut = cuts[place] + offset
        if cuts[place - 1] < cut < cuts[place + 1]:
            moved.append([*cuts[:place], cut, *cuts[place + 1 :]])
    return moved
