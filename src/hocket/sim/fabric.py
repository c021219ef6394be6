"""What connects the ranks: links between any two, or hosts whose ranks share an uplink."""

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
    """What a fabric carries, in the order in which ranks send.

    Args:
        sources, destinations, nbytes: of every message; between a rank and itself nothing is sent.
        num_ranks: of the schedule.
        ports: messages that a rank sends, and receives, at a time.
    """

    sources: NDArray[np.int32]
    destinations: NDArray[np.int32]
    nbytes: NDArray[np.float64]
    num_ranks: int
    ports: int


class MessageCost(NamedTuple):
    """What a message takes that is alone on its way.

    Attributes:
        latency_s: seconds until its bytes flow.
        occupied_s: seconds in which they do.
        shared: numbers of links that it holds meanwhile, and that only one message holds at a time.
    """

    latency_s: float
    occupied_s: float
    shared: Sequence[int] = ()


class Fabric(Protocol):
    """What connects the ranks; see `Uniform` and `Hosts`."""

    def add_messages(self, graph: TaskGraph, messages: Messages) -> NDArray[np.int32]:
        """Add a task for every message and return their numbers."""
        ...

    def connections(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return over which of its connections, 0 or 1, a rank sends each message, and receives it."""
        ...

    def reduce_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of reductions."""
        ...

    def message_cost(self, source: int, destination: int, nbytes: int) -> MessageCost:
        """Return what one message between two ranks takes."""
        ...


@dataclass(frozen=True)
class Uniform:
    """The same link between any two ranks, and nothing shared but the ranks' own connections to it."""

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
    """Hosts of as many ranks each, one after the other, each with one full-duplex uplink that its ranks share.

    A rank sends to others of its host while it sends to another host.

    Args:
        inner: between two ranks of a host.
        outer: between two hosts; its bandwidth is that of a host's uplink.
        ranks_per_host: of every host.
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
    """Some of the ranks of a fabric.

    Args:
        fabric: of all of them.
        ranks: of it, in the order in which they are counted here.
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
