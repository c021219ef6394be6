"""The cuts of a model's layers into the stages of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.errors import InvalidArgument, InvalidModel
from hocket.pipeline.partition import bottleneck_partition
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.layer_graph import LayerGraph, cuts_of
from hocket.train.setup.balance import parameter_counts


def cut_layers(
    graph: LayerGraph,
    schedule: PipelineSchedule,
    *,
    layers_per_partition: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Return the index of the first layer of each stage, and the number of layers at the end.

    Args:
        graph: layers of the model.
        schedule: a schedule with these stages.
        layers_per_partition: number of layers of each stage, in the order of stages.
        costs: a cost for each layer, whose sums are equalised between stages. None: the numbers of parameters.

    Raises:
        InvalidArgument: the numbers do not fit the model.
        InvalidModel: the model has fewer layers than stages.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)]))
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=4)
        >>> hk.train.cut_layers(graph, schedule), hk.train.cut_layers(graph, schedule, costs=[1, 1, 1, 3])
        ((0, 2, 4), (0, 3, 4))
    """
    num_layers = len(graph.layers)
    if schedule.num_stages > num_layers:
        raise InvalidModel(
            f"{schedule.name} on {schedule.num_ranks} ranks has {schedule.num_stages} stages; the model has "
            f"{num_layers} {graph.what}"
        )
    if layers_per_partition is not None:
        if len(layers_per_partition) != schedule.num_stages:
            raise InvalidArgument(
                f"layers_per_partition must have {schedule.num_stages} numbers, one for each stage, not "
                f"{len(layers_per_partition)}"
            )
        return tuple(cuts_of(graph, layers_per_partition))
    values = parameter_counts(graph) if costs is None else list(costs)
    if len(values) != num_layers:
        raise InvalidArgument(f"costs must have {num_layers} numbers, one for each of {graph.what}, not {len(values)}")
    return tuple(bottleneck_partition(values, schedule.num_stages))
