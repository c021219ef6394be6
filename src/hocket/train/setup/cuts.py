"""Where the stages of a schedule begin among the layers of a model."""

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
    """Return where stages begin, and the number of layers.

    Args:
        graph: of the model.
        schedule: whose stages they are.
        layers_per_partition: how many layers each stage has, in the order of stages.
        costs: of each layer, whose sums are equalised between stages. None: the parameters of layers.

    Raises:
        InvalidArgument: the numbers do not fit the model.
        InvalidModel: there are more stages than layers.
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
                f"layers_per_partition has {len(layers_per_partition)} numbers, and there are {schedule.num_stages} "
                "stages"
            )
        return tuple(cuts_of(graph, layers_per_partition))
    values = parameter_counts(graph) if costs is None else list(costs)
    if len(values) != num_layers:
        raise InvalidArgument(f"there are {len(values)} costs, and {num_layers} {graph.what}")
    return tuple(bottleneck_partition(values, schedule.num_stages))
