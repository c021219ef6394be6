"""Models of what connects ranks: a link between any two, or hosts whose ranks share an uplink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.sim.graph import TaskGraph
from hocket.sim.link import Link


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages that a fabric carries, in the order in which ranks send them.

    Args:
        sources, destinations, nbytes: one item per message. A message from a rank to itself costs nothing.
        num_ranks: number of ranks of the schedule.
        ports: number of messages that a rank can send, and receive, at the same time.

    Examples:
        >>> messages = hk.sim.Messages(
        ...     sources=np.array([0, 1], np.int32), destinations=np.array([1, 0], np.int32),
        ...     nbytes=np.array([1000.0, 1000.0]), num_ranks=2, ports=1,
        ... )
        >>> graph = hk.sim.TaskGraph()
        >>> fabric = hk.sim.Uniform(hk.sim.Link(alpha_s=1e-6, beta_s=1e-9))
        >>> fabric.add_messages(graph, messages).tolist()  # one task per message
        [0, 1]
        >>> f"{graph.simulate().makespan_s:.1e} s"
        '2.0e-06 s'
    """

    sources: NDArray[np.int32]
    destinations: NDArray[np.int32]
    nbytes: NDArray[np.float64]
    num_ranks: int
    ports: int


class MessageCost(NamedTuple):
    """The cost of a message without contention.

    Attributes:
        latency_s: seconds until its bytes flow.
        occupied_s: seconds during which its bytes flow.
        shared: numbers of the links that it occupies during this time; a link carries one message at a time.

    Examples:
        >>> fabric = hk.sim.Uniform(hk.sim.Link.of(latency_us=1, bandwidth_gb_s=10))
        >>> cost = fabric.message_cost(0, 1, nbytes=10_000)
        >>> f"{cost.latency_s:.1e} s + {cost.occupied_s:.1e} s"
        '1.0e-06 s + 1.0e-06 s'
    """

    latency_s: float
    occupied_s: float
    shared: Sequence[int] = ()


class Fabric(Protocol):
    """The interface of a model of what connects ranks; `Uniform` and `Hosts` implement it.

    Examples:
        A fabric of your own can wrap another one, here to make every message twice as slow:

        >>> class Slow(hk.sim.Uniform):
        ...     def message_cost(self, source, destination, nbytes):
        ...         cost = super().message_cost(source, destination, nbytes)
        ...         return cost._replace(occupied_s=2 * cost.occupied_s)
        >>> Slow(hk.sim.Link(alpha_s=0.0, beta_s=1.0)).message_cost(0, 1, nbytes=3).occupied_s
        6.0
    """

    def add_messages(self, graph: TaskGraph, messages: Messages) -> NDArray[np.int32]:
        """Add a task for every message, and return the numbers of the tasks."""
        ...

    def connections(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return, for each message, the number (0 or 1) of the ranks' connection that carries it."""
        ...

    def reduce_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds that reductions of these sizes take."""
        ...

    def message_cost(self, source: int, destination: int, nbytes: int) -> MessageCost:
        """Return the cost of one message between two ranks."""
        ...


@dataclass(frozen=True)
class Uniform:
    """The same link between any two ranks. Messages share only the connections of their own two ranks.

    Examples:
        >>> fabric = hk.sim.Uniform(hk.sim.Link(alpha_s=1e-6, beta_s=1e-9))
        >>> cost = fabric.message_cost(0, 1, nbytes=4000)
        >>> f"{cost.latency_s + cost.occupied_s:.1e} s"
        '5.0e-06 s'
    """

    link: Link

    def add_messages(self, graph: TaskGraph, messages: Messages) -> NDArray[np.int32]:
        remote = messages.sources != messages.destinations
        if messages.ports == 1 or self.link.beta_s == 0:
            return graph.add_tasks(np.where(remote, self.link.alpha_s + self.link.beta_s * messages.nbytes, 0.0))
        tasks = graph.add_tasks(np.where(remote, self.link.alpha_s, 0.0), messages.nbytes)
        for ranks in (messages.sources, messages.destinations):
            links = graph.add_links(np.full(messages.num_ranks, 1 / self.link.beta_s))
            graph.cross(tasks[remote], links[ranks[remote]])
        return tasks

    def connections(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.zeros(len(sources), np.int32)

    def reduce_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.link.gamma_s * nbytes

    def message_cost(self, source: int, destination: int, nbytes: int) -> MessageCost:
        return MessageCost(self.link.alpha_s, self.link.beta_s * nbytes)


@dataclass(frozen=True)
class Hosts:
    """Hosts with equal numbers of consecutive ranks; the ranks of a host share one full-duplex uplink.

    A rank can send to a rank of its host and to another host at the same time.

    Args:
        inner: link between two ranks of a host.
        outer: link between two hosts; its bandwidth is the bandwidth of a host's uplink.
        ranks_per_host: number of ranks of every host.

    Examples:
        >>> fast, slow = hk.sim.Link.of(1, 10), hk.sim.Link.of(20, 1)
        >>> fabric = hk.sim.Hosts(inner=fast, outer=slow, ranks_per_host=2)
        >>> fabric.message_cost(0, 1, nbytes=1000).shared  # ranks 0 and 1 are on one host
        ()
        >>> fabric.message_cost(0, 2, nbytes=1000).shared  # uplinks of host 0 and host 1
        (0, 3)
    """

    inner: Link
    outer: Link
    ranks_per_host: int

    def add_messages(self, graph: TaskGraph, messages: Messages) -> NDArray[np.int32]:
        from_host, to_host = (ranks // self.ranks_per_host for ranks in (messages.sources, messages.destinations))
        crosses = from_host != to_host
        remote = messages.sources != messages.destinations
        inside = np.where(remote, self.inner.alpha_s + self.inner.beta_s * messages.nbytes, 0.0)
        tasks = graph.add_tasks(np.where(crosses, self.outer.alpha_s, inside), np.where(crosses, messages.nbytes, 0.0))
        if self.outer.beta_s == 0:
            return tasks
        num_hosts = -(-messages.num_ranks // self.ranks_per_host)
        for hosts in (from_host, to_host):
            links = graph.add_links(np.full(num_hosts, 1 / self.outer.beta_s))
            graph.cross(tasks[crosses], links[hosts[crosses]])
        return tasks

    def connections(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> NDArray[np.int32]:
        crosses: NDArray[np.bool_] = sources // self.ranks_per_host != destinations // self.ranks_per_host
        return crosses.astype(np.int32)

    def reduce_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.inner.gamma_s * nbytes

    def message_cost(self, source: int, destination: int, nbytes: int) -> MessageCost:
        from_host, to_host = source // self.ranks_per_host, destination // self.ranks_per_host
        if from_host == to_host:
            return MessageCost(self.inner.alpha_s, self.inner.beta_s * nbytes)
        return MessageCost(self.outer.alpha_s, self.outer.beta_s * nbytes, (2 * from_host, 2 * to_host + 1))


@dataclass(frozen=True)
class Among:
    """A fabric of some ranks of another fabric.

    Args:
        fabric: the fabric of all ranks.
        ranks: ranks of that fabric, in the order of their new numbers.

    Examples:
        >>> fabric = hk.sim.Hosts(inner=hk.sim.Link.of(1, 10), outer=hk.sim.Link.of(20, 1), ranks_per_host=2)
        >>> pair = hk.sim.Among(fabric, ranks=(0, 2))  # one rank of each host
        >>> pair.message_cost(0, 1, nbytes=1000) == fabric.message_cost(0, 2, nbytes=1000)
        True
    """

    fabric: Fabric
    ranks: tuple[int, ...]

    def add_messages(self, graph: TaskGraph, messages: Messages) -> NDArray[np.int32]:
        ranks = self._numbers
        moved = replace(
            messages,
            sources=ranks[messages.sources],
            destinations=ranks[messages.destinations],
            num_ranks=int(ranks.max()) + 1,
        )
        return self.fabric.add_messages(graph, moved)

    def connections(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> NDArray[np.int32]:
        return self.fabric.connections(self._numbers[sources], self._numbers[destinations])

    def reduce_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.fabric.reduce_s(nbytes)

    def message_cost(self, source: int, destination: int, nbytes: int) -> MessageCost:
        return self.fabric.message_cost(self.ranks[source], self.ranks[destination], nbytes)

    @property
    def _numbers(self) -> NDArray[np.int32]:
        return np.array(self.ranks, np.int32)
