"""Choose the set-up of a training: as requested, by measured layers, or the fastest in simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from hocket.comm import Communicator
from hocket.measure.progress_bar import progress
from hocket.pipeline.choosing import Candidate, choose
from hocket.pipeline.schedule import PipelineSchedule
from hocket.sim import Link
from hocket.train.data.batches import Samples, Stream
from hocket.train.data.micro_batches import first_inputs
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.on_rank_0 import on_rank_0
from hocket.train.setup.arrangement import Arrangement
from hocket.train.setup.balance import balance_by_time, count_costs, join_layers
from hocket.train.setup.cuts import cut_layers
from hocket.train.setup.layer_costs import StageCosts, costs_of_model, costs_of_stages, profile_layers
from hocket.train.setup.link import measure_link
from hocket.train.setup.setup_request import SetupRequest
from hocket.train.setup.training_setup import TrainingSetup


def choose_setup(
    request: SetupRequest, graph: LayerGraph, source: Samples | Stream, comm: Communicator, shows: bool = False
) -> TrainingSetup:
    """Return the set-up of a training; called by all ranks. Rank 0 makes the measurements.

    Args:
        request: the user's request.
        graph: layers of the model.
        source: source of the batches; layers are measured with the first batch.
        comm: a communicator of all ranks.
        shows: show progress on this rank.

    Raises:
        InvalidArgument, InvalidModel: the request cannot be fulfilled; raised on every rank.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)))
        >>> data = (np.zeros((8, 2)), np.zeros((8, 1)))
        >>> source = hk.train.source_of(data, comm, batch_size=8, shuffle=False, seed=0, drop_last=False)
        >>> print(hk.train.choose_setup(hk.train.SetupRequest(batch_size=8), graph, source, comm))
        2 partitions x 1 replicas, 1f1b, 8 micro-batches, stages of 1, 1 layers
    """
    request.check()
    if request.is_to_choose:
        return _choose_fastest(request, graph, source, comm, shows)
    arrangement = request.arrangement(comm.size)
    schedule = request.schedule_for(arrangement)
    cuts = _cut_as_requested(request, graph, schedule)
    balance = request.balance
    if balance == "auto":
        balance = "profile" if schedule.num_stages > 1 and not isinstance(source, Stream) else "params"
    if request.layers_per_partition is None and balance != "params" and isinstance(balance, str):
        inputs = first_inputs(source, graph.batch_inputs, arrangement.num_replicas * schedule.num_micro_batches)
        if balance == "profile":
            layers = on_rank_0(comm, lambda: _profile(graph, inputs, shows))
            return _balance_by_time(graph, arrangement, schedule, layers, measure_link(comm))
        cuts = cut_layers(graph, schedule, costs=count_costs(balance, graph, inputs))
    return TrainingSetup(arrangement, schedule, cuts, graph.split(cuts))


def check_request(request: SetupRequest, graph: LayerGraph, num_ranks: int) -> None:
    """Check the parts of a request that need neither ranks nor data: call it before ranks are started.

    Args:
        request: the user's request.
        graph: layers of the model.
        num_ranks: number of ranks of the job.

    Raises:
        InvalidArgument, InvalidModel: the request cannot be fulfilled.

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)))
        >>> hk.train.check_request(hk.train.SetupRequest(batch_size=8), graph, num_ranks=2)
        >>> hk.train.check_request(hk.train.SetupRequest(batch_size=8), graph, num_ranks=3)
        Traceback (most recent call last):
            ...
        hocket.errors.InvalidModel: 1f1b on 3 ranks has 3 stages; the model has 2 modules
    """
    request.check()
    if not request.is_to_choose:
        _cut_as_requested(request, graph, request.schedule_for(request.arrangement(num_ranks)))


def _cut_as_requested(request: SetupRequest, graph: LayerGraph, schedule: PipelineSchedule) -> tuple[int, ...]:
    """Return the cuts by the numbers in the request, or by parameters if it has no numbers."""
    costs = None if isinstance(request.balance, str) else request.balance
    return cut_layers(graph, schedule, layers_per_partition=request.layers_per_partition, costs=costs)


def _choose_fastest(
    request: SetupRequest, graph: LayerGraph, source: Samples | Stream, comm: Communicator, shows: bool
) -> TrainingSetup:
    """Measure the layers with micro-batches of two sizes, and choose the set-up by simulation."""
    sizes = (max(1, request.batch_size // (4 * comm.size)), max(2, request.batch_size // comm.size))
    inputs = [first_inputs(source, graph.batch_inputs, max(1, request.batch_size // size)) for size in sizes]
    link = measure_link(comm)

    def measure() -> tuple[Candidate, list[StageCosts]]:
        small, large = (_profile(graph, each, shows) for each in inputs)
        with progress("choosing", unit="set-ups", shown=shows) as update:

            def report(done: int, total: int) -> None:
                update(done, total, "")

            best = choose(
                costs_of_model(small, large, sizes),
                comm.size,
                request.batch_size,
                limit_nbytes=request.limit_nbytes,
                fabric=link,
                names=None if request.schedule is None else [str(request.schedule)],
                num_best=1,
                report=report,
            )[0]
        return best, _scaled(small, large, sizes, best.micro_batch_size)

    best, layers = on_rank_0(comm, measure)
    arrangement = Arrangement(best.num_ranks, best.num_replicas)
    return _balance_by_time(graph, arrangement, best.schedule(), layers, link)


def _balance_by_time(
    graph: LayerGraph, arrangement: Arrangement, schedule: PipelineSchedule, layers: list[StageCosts], link: Link
) -> TrainingSetup:
    replicas = arrangement.num_replicas
    cuts = balance_by_time(graph, layers, schedule, fabric=link, num_replicas=replicas)
    costs = costs_of_stages(join_layers(graph, layers, cuts), fabric=link, num_replicas=replicas)
    return TrainingSetup(arrangement, schedule, tuple(cuts), graph.split(cuts), costs)


def _profile(graph: LayerGraph, inputs: Mapping[str, Any], shows: bool) -> list[StageCosts]:
    with progress("measuring layers", unit="layers", shown=shows) as update:
        return profile_layers(graph, inputs, report=update)


def _scaled(
    small: Sequence[StageCosts], large: Sequence[StageCosts], sizes: tuple[int, int], num_samples: int
) -> list[StageCosts]:
    """Return the costs of layers for another size of micro-batch, on the line through two measured sizes."""
    share = (num_samples - sizes[0]) / (sizes[1] - sizes[0])
    names = [each.name for each in fields(StageCosts)]
    return [
        StageCosts(*(max(0.0, getattr(a, name) + share * (getattr(b, name) - getattr(a, name))) for name in names))
        for a, b in zip(small, large, strict=True)
    ]
