"""Where the stages of a schedule begin among the layers of a model."""

from __future__ import annotations

from hocket.errors import InvalidArgument, InvalidModel
from hocket.pipeline.partition import bottleneck_partition
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.layer_graph import LayerGraph, cuts_of
from hocket.train.setup.balance import parameter_counts
from hocket.train.setup.setup_request import SetupRequest


def cut_layers(graph: LayerGraph, schedule: PipelineSchedule, request: SetupRequest) -> tuple[int, ...]:
    """Return where stages begin, and the number of layers: by the request's numbers of layers or costs; by the
    parameters of layers where it has neither.

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
    counts = request.layers_per_partition
    if counts is not None:
        if len(counts) != schedule.num_stages:
            raise InvalidArgument(
                f"layers_per_partition has {len(counts)} numbers, and there are {schedule.num_stages} stages"
            )
        return tuple(cuts_of(graph, counts))
    costs = parameter_counts(graph) if isinstance(request.balance, str) else list(request.balance)
    if len(costs) != num_layers:
        raise InvalidArgument(f"there are {len(costs)} costs, and {num_layers} {graph.what}")
    return tuple(bottleneck_partition(costs, schedule.num_stages))
