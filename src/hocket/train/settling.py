"""What a job will do: settled from what was asked for, or measured and chosen by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hocket.comm import Communicator
from hocket.errors import InvalidArgument
from hocket.measure.progress import progress
from hocket.pipeline.choosing import Candidate, choose
from hocket.pipeline.schedule import PipelineSchedule
from hocket.sim import Link
from hocket.train.arrangement import Arrangement
from hocket.train.balance import BALANCES, balance_by_time, count_costs, join_layers
from hocket.train.batches import Samples, Stream
from hocket.train.cutting import micro_batches_of
from hocket.train.layer_costs import StageCosts, costs_of_model, costs_of_stages, profile_layers
from hocket.train.layer_graph import LayerGraph
from hocket.train.link import measure_link
from hocket.train.on_rank_0 import on_rank_0
from hocket.train.plan import Plan, plan_ranks, plan_schedule, plan_training


@dataclass(frozen=True)
class Wanted:
    """What a user asked for; None where they leave it open.

    Args:
        strategy, num_partitions, num_replicas: as of `arrange`; "auto": chosen.
        schedule, schedule_options, num_micro_batches, recompute: of a replica.
        batch_size: samples of a step, over all replicas.
        layers_per_partition: how many layers each stage has.
        balance: what stages are alike in: "params", "flops", "profile", or a number for every layer; "auto": "profile"
            where there are several stages and data that can be read twice, otherwise "params".
        limit_nbytes: that a rank may hold of weights, gradients and activations, where the strategy is chosen.
    """

    batch_size: int
    strategy: str = "model"
    num_partitions: int | None = None
    num_replicas: int | None = None
    schedule: str | PipelineSchedule | None = None
    schedule_options: Mapping[str, Any] | None = None
    num_micro_batches: int | None = None
    recompute: bool = False
    layers_per_partition: Sequence[int] | None = None
    balance: str | Sequence[float] = "params"
    limit_nbytes: float | None = None


def settle(
    wanted: Wanted, graph: LayerGraph, source: Samples | Stream, comm: Communicator, shows: bool = False
) -> Plan:
    """Settle a training; called by all ranks. Where something is measured, rank 0 measures it.

    Raises:
        InvalidArgument, InvalidModel: it cannot be done so: raised on every rank.
    """
    plan = settle_without_measuring(wanted, graph, comm.size)
    if plan is None:
        return _chosen(wanted, graph, source, comm, shows)
    arrangement, table = plan.arrangement, plan.schedule
    balance = wanted.balance
    if balance == "auto":
        balance = "profile" if table.num_stages > 1 and not isinstance(source, Stream) else "params"
    if wanted.layers_per_partition is not None or balance == "params" or not isinstance(balance, str):
        return plan
    inputs = first_inputs(source, graph.batch_inputs, arrangement.num_replicas * table.num_micro_batches)
    if balance != "profile":
        return plan_training(graph, arrangement, table, costs=count_costs(balance, graph, inputs))
    layers, link = on_rank_0(comm, lambda: _profile(graph, inputs, shows)), measure_link(comm)
    return _balanced(graph, arrangement, table, layers, link)


def settle_without_measuring(wanted: Wanted, graph: LayerGraph, num_ranks: int) -> Plan | None:
    """Settle as much of a training as can be without data or ranks: stages have as many parameters as each other where
    something is to be measured for that. None where the strategy is still to be chosen.

    Raises:
        InvalidArgument, InvalidModel: it cannot be done so.
    """
    if isinstance(wanted.balance, str) and wanted.balance not in (*BALANCES, "profile", "auto"):
        raise InvalidArgument(f"balance is {', '.join(BALANCES)}, profile or auto, not {wanted.balance!r}")
    if wanted.strategy == "auto":
        if isinstance(wanted.schedule, PipelineSchedule) or wanted.layers_per_partition is not None:
            raise InvalidArgument('strategy "auto" chooses schedule and cuts: leave them out, or choose a strategy')
        return None
    schedule = wanted.schedule or "1f1b"
    arrangement = plan_ranks(wanted.strategy, num_ranks, wanted.num_partitions, wanted.num_replicas, schedule)
    table = plan_schedule(
        arrangement,
        wanted.batch_size,
        schedule=schedule,
        options=wanted.schedule_options,
        num_micro_batches=wanted.num_micro_batches,
        recompute=wanted.recompute,
    )
    if wanted.layers_per_partition is not None:
        return plan_training(graph, arrangement, table, layers_per_partition=wanted.layers_per_partition)
    costs = None if isinstance(wanted.balance, str) else wanted.balance
    return plan_training(graph, arrangement, table, costs=costs)


def first_inputs(source: Samples | Stream, names: Sequence[str], num_parts: int) -> Mapping[str, Any]:
    """Return what the model takes, by name, of the first micro-batch of a source, of so many a batch.

    Raises:
        InvalidArgument: the source cannot be read twice.
    """
    if isinstance(source, Stream):
        raise InvalidArgument(
            "to measure a model its data have to be at hand: give arrays or a dataset, or choose strategy and balance"
        )
    first = next(source.batches(0))
    return micro_batches_of(first, names, 0, 1, num_parts).micro_batches[0].inputs


def _chosen(wanted: Wanted, graph: LayerGraph, source: Samples | Stream, comm: Communicator, shows: bool) -> Plan:
    sizes = (max(1, wanted.batch_size // (4 * comm.size)), max(2, wanted.batch_size // comm.size))
    inputs = [first_inputs(source, graph.batch_inputs, max(1, wanted.batch_size // size)) for size in sizes]
    link = measure_link(comm)

    def measure() -> tuple[Candidate, list[StageCosts]]:
        small, large = (_profile(graph, each, shows) for each in inputs)
        model = costs_of_model(small, large, sizes)
        names = None if wanted.schedule is None else [str(wanted.schedule)]
        with progress("choosing", unit="ways", shown=shows) as update:

            def report(done: int, total: int) -> None:
                update(done, total, "")

            best = choose(
                model,
                comm.size,
                wanted.batch_size,
                limit_nbytes=wanted.limit_nbytes,
                fabric=link,
                names=names,
                num_best=1,
                report=report,
            )[0]
        return best, _scaled(small, large, sizes, best.micro_batch_size)

    best, layers = on_rank_0(comm, measure)
    arrangement = Arrangement(best.num_ranks, best.num_replicas)
    return _balanced(graph, arrangement, best.schedule(), layers, link)


def _balanced(
    graph: LayerGraph, arrangement: Arrangement, table: PipelineSchedule, layers: list[StageCosts], link: Link
) -> Plan:
    plan = plan_training(graph, arrangement, table, costs=[each.forward_s + each.backward_s for each in layers])
    replicas = arrangement.num_replicas
    cuts = balance_by_time(graph, layers, table, fabric=link, num_replicas=replicas)
    costs = costs_of_stages(join_layers(graph, layers, cuts), fabric=link, num_replicas=replicas)
    return replace(plan, cuts=tuple(cuts), split=graph.split(cuts), costs=costs)


def _profile(graph: LayerGraph, inputs: Mapping[str, Any], shows: bool) -> list[StageCosts]:
    with progress("measuring layers", unit="layers", shown=shows) as update:
        return profile_layers(graph, inputs, report=update)


def _scaled(
    small: Sequence[StageCosts], large: Sequence[StageCosts], sizes: tuple[int, int], wanted: int
) -> list[StageCosts]:
    """What layers cost for another size of micro-batch, on the line through two that were measured."""
    share = (wanted - sizes[0]) / (sizes[1] - sizes[0])
    names = [each.name for each in fields(StageCosts)]
    return [
        StageCosts(*(max(0.0, getattr(a, name) + share * (getattr(b, name) - getattr(a, name))) for name in names))
        for a, b in zip(small, large, strict=True)
    ]
