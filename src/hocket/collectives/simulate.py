"""A schedule on the virtual clock: every rank sends one message at a time, and receives one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.blocks import sizes_of
from hocket.collectives.dependencies import find_dependencies
from hocket.collectives.schedule import Schedule
from hocket.errors import InvalidArgument
from hocket.sim import Fabric, Link, Messages, TaskGraph, Uniform


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a schedule would take. Simulated, not measured.

    Args:
        seconds: until the last rank is done.
        bytes_sent, bytes_received: of every rank, to and from others.
        begin_s, end_s: of every message, in the order of `Schedule.message_starts`.
    """

    seconds: float
    bytes_sent: NDArray[np.int64]
    bytes_received: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def simulate(schedule: Schedule, nbytes: int, fabric: Fabric | Link, *, itemsize: int = 1) -> Simulation:
    """Run a schedule on a virtual clock.

    A message begins when what it carries is there, and all earlier messages of its sender have left and all those of
    its receiver have come, as far as ports of the connection go; it takes alpha + beta * bytes. A rank reduces one
    message at a time, while others come in.

    Args:
        schedule: to run.
        nbytes: of the array; where there is a block for every rank, of all of them together.
        fabric: what connects the ranks.
        itemsize: bytes that are not divided between blocks.
    """
    if isinstance(fabric, Link):
        fabric = Uniform(fabric)
    if nbytes < 0 or nbytes % itemsize:
        raise InvalidArgument(f"nbytes is a multiple of {itemsize}, 0 or more, not {nbytes}")
    sizes = sizes_of(schedule, nbytes, itemsize).astype(np.float64)[schedule.blocks]
    dependencies = find_dependencies(schedule)
    starts = schedule.message_starts
    sources, destinations = schedule.sources[starts], schedule.destinations[starts]
    graph = TaskGraph()
    message_nbytes = _sums(dependencies.message_of, sizes, len(starts))
    messages = fabric.add_messages(
        graph, Messages(sources, destinations, message_nbytes, schedule.num_ranks, schedule.ports)
    )
    reduced = _sums(dependencies.message_of, sizes * schedule.reduces, len(starts))[dependencies.reducing]
    reductions = graph.add_tasks(fabric.reduce_s(reduced))
    graph.add_order(dependencies.after, dependencies.before)
    num_ranks = schedule.num_ranks
    connections = fabric.connections(sources, destinations)
    processors = graph.add_resources(num_ranks)
    remote = sources != destinations
    for each in (0, 1):
        over = remote & (connections == each)
        for ranks in (sources[over], destinations[over]):
            capacity = _most_at_a_time(schedule.rounds[starts[over]], ranks)
            ports = graph.add_resources(num_ranks, capacity=capacity, in_order=True)
            graph.use(messages[over], ports[ranks])
    graph.use(reductions, processors[destinations[dependencies.reducing]])
    timeline = graph.simulate()

    def per_rank(ranks: NDArray[np.int32]) -> NDArray[np.int64]:
        return _sums(ranks[remote], message_nbytes[remote], num_ranks).astype(np.int64)

    return Simulation(
        timeline.makespan_s,
        per_rank(sources),
        per_rank(destinations),
        timeline.begin_s[: len(starts)],
        timeline.end_s[: len(starts)],
    )


def _most_at_a_time(rounds: NDArray[np.int32], ranks: NDArray[np.int32]) -> int:
    """The messages that a rank has in a round, at most."""
    _, counts = np.unique(rounds.astype(np.int64) << 32 | ranks, return_counts=True)
    return int(counts.max(initial=1))


def _sums(groups: NDArray[Any], values: NDArray[np.float64], num_groups: int) -> NDArray[np.float64]:
    return np.bincount(groups, values, num_groups).astype(np.float64)
