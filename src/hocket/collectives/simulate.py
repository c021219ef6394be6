"""Simulate a schedule on a virtual clock: every rank sends one message at a time and receives one at a time."""

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
    """The simulated time and traffic of a schedule.

    Args:
        seconds: time until the last rank ends.
        bytes_sent, bytes_received: bytes that each rank sends to and receives from other ranks.
        begin_s, end_s: begin and end of every message, in the order of `Schedule.message_starts`.

    Examples:
        >>> from hocket.collectives.simulate import simulate
        >>> schedule = hk.collectives.find_algorithm("broadcast", "flat").schedule(3)
        >>> result = simulate(schedule, 1000, hk.sim.Link.of(latency_us=1, bandwidth_gb_s=1))
        >>> result.bytes_sent.tolist(), (1e6 * result.end_s).round(3).tolist()
        ([2000, 0, 0], [2.0, 4.0])
    """

    seconds: float
    bytes_sent: NDArray[np.int64]
    bytes_received: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def simulate(schedule: Schedule, nbytes: int, fabric: Fabric | Link, *, itemsize: int = 1) -> Simulation:
    """Simulate a schedule on a virtual clock.

    A message begins when its data is available and a port is free at its sender and at its receiver, in the order of
    the schedule; it takes alpha + beta * bytes. A rank reduces one message at a time, in parallel to receives.

    Args:
        schedule: schedule to simulate.
        nbytes: size of the array; for collectives with one block per rank, of all blocks together.
        fabric: network between the ranks.
        itemsize: bytes of an item, which is never split between blocks.

    Returns:
        The simulated time and traffic.

    Raises:
        InvalidArgument: `nbytes` is negative or not a multiple of `itemsize`.

    Examples:
        >>> from hocket.collectives.simulate import simulate
        >>> link = hk.sim.Link.of(latency_us=2, bandwidth_gb_s=10)
        >>> for name in ("ring", "rabenseifner", "recursive_doubling"):
        ...     schedule = hk.collectives.find_algorithm("all_reduce", name).schedule(8)
        ...     print(name, f"{1e6 * simulate(schedule, 1024, link).seconds:.2f} us")
        ring 28.18 us
        rabenseifner 12.18 us
        recursive_doubling 6.31 us
    """
    if isinstance(fabric, Link):
        fabric = Uniform(fabric)
    if nbytes < 0 or nbytes % itemsize:
        raise InvalidArgument(f"nbytes must be 0 or more and a multiple of {itemsize}, got {nbytes}")
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
    for connection in (0, 1):
        over = remote & (connections == connection)
        for ranks in (sources[over], destinations[over]):
            capacity = _max_per_round(schedule.rounds[starts[over]], ranks)
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


def _max_per_round(rounds: NDArray[np.int32], ranks: NDArray[np.int32]) -> int:
    """Return the largest number of messages of a rank in a round."""
    _, counts = np.unique(rounds.astype(np.int64) << 32 | ranks, return_counts=True)
    return int(counts.max(initial=1))


def _sums(groups: NDArray[Any], values: NDArray[np.float64], num_groups: int) -> NDArray[np.float64]:
    return np.bincount(groups, values, num_groups).astype(np.float64)
