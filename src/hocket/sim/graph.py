"""A graph of tasks on resources and links, and its simulation on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hocket import _native
from hocket.errors import InvalidArgument, SimulationDeadlock


@dataclass(frozen=True, eq=False)
class Timeline:
    """The result of a simulation.

    Args:
        begin_s, end_s: begin and end of every task, in seconds of the virtual clock.
        link_nbytes: bytes that each link has carried.
        busy_s: seconds that each resource was in use, summed over the tasks that used it.

    Examples:
        >>> graph = hk.sim.TaskGraph()
        >>> first, second = graph.add_tasks([2.0, 3.0])
        >>> graph.add_order(second, first)  # second starts after first
        >>> timeline = graph.simulate()
        >>> timeline.begin_s.tolist(), timeline.makespan_s
        ([0.0, 2.0], 5.0)
    """

    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    link_nbytes: NDArray[np.float64]
    busy_s: NDArray[np.float64]

    @property
    def makespan_s(self) -> float:
        """End of the last task, in seconds."""
        return float(self.end_s.max(initial=0.0))


class TaskGraph:
    """Tasks with their dependencies, resources and links. All methods take arrays and so add many items at once.

    A task begins when all its predecessors have ended and all its resources are free. It takes its duration, and then
    the time that its bytes need on its links. Links are shared max-min fairly.

    Examples:
        Two tasks of 2 s on one processor, then a message of 1000 bytes over a link of 500 B/s:

        >>> graph = hk.sim.TaskGraph()
        >>> tasks = graph.add_tasks([2.0, 2.0])
        >>> graph.use(tasks, graph.add_resources(1))
        >>> message = graph.add_tasks(0.0, nbytes=1000)
        >>> graph.cross(message, graph.add_links(500.0))
        >>> graph.add_order(message, tasks[-1])
        >>> graph.simulate().end_s.tolist()
        [2.0, 4.0, 6.0]
    """

    def __init__(self) -> None:
        self.num_tasks = 0
        self.num_resources = 0
        self.num_links = 0
        self._columns: dict[str, list[NDArray[Any]]] = {}

    def add_tasks(self, duration_s: ArrayLike, nbytes: ArrayLike = 0.0) -> NDArray[np.int32]:
        """Add tasks and return their numbers.

        Args:
            duration_s: duration of each task in seconds.
            nbytes: bytes that each task carries over its links after its duration.

        Raises:
            InvalidArgument: a duration or a size is negative or not finite.

        Examples:
            >>> hk.sim.TaskGraph().add_tasks([1.0, 0.5]).tolist()
            [0, 1]
        """
        durations, sizes = (np.atleast_1d(np.asarray(each, np.float64)) for each in (duration_s, nbytes))
        durations, sizes = np.broadcast_arrays(durations, sizes)
        for name, values in (("duration_s", durations), ("nbytes", sizes)):
            wrong = values[~((values >= 0) & (values < np.inf))]
            if len(wrong):
                raise InvalidArgument(f"{name} of a task must be 0 or more, not {wrong[0]}")
        self._add("duration_s", durations)
        self._add("nbytes", sizes)
        numbers = np.arange(self.num_tasks, self.num_tasks + len(durations), dtype=np.int32)
        self.num_tasks += len(durations)
        return numbers

    def add_resources(self, num: int, *, capacity: int = 1, in_order: bool = False) -> NDArray[np.int32]:
        """Add resources and return their numbers.

        Args:
            num: number of resources.
            capacity: number of tasks that can use a resource at the same time.
            in_order: whether tasks get a resource in the order of their numbers; otherwise the task that has waited
                longest gets it.

        Examples:
            >>> graph = hk.sim.TaskGraph()
            >>> tasks = graph.add_tasks([1.0, 1.0, 1.0])
            >>> graph.use(tasks, graph.add_resources(1, capacity=2))
            >>> graph.simulate().makespan_s
            2.0
        """
        if capacity < 1:
            raise InvalidArgument(f"capacity of a resource must be 1 or more, not {capacity}")
        self._add("capacity", np.full(num, capacity))
        self._add("in_order", np.full(num, in_order))
        self.num_resources += num
        return np.arange(self.num_resources - num, self.num_resources, dtype=np.int32)

    def add_links(self, bandwidth: ArrayLike) -> NDArray[np.int32]:
        """Add links, each with its bandwidth in bytes per second, and return their numbers.

        Examples:
            >>> graph = hk.sim.TaskGraph()
            >>> graph.cross(graph.add_tasks([0.0, 0.0], nbytes=100.0), graph.add_links(100.0))
            >>> graph.simulate().makespan_s  # two tasks share the link
            2.0
        """
        values = np.atleast_1d(np.asarray(bandwidth, np.float64))
        if not ((values > 0) & (values < np.inf)).all():
            raise InvalidArgument(f"bandwidth of a link must be above 0 B/s, not {values[~(values > 0)][:1]}")
        self._add("bandwidth", values)
        self.num_links += len(values)
        return np.arange(self.num_links - len(values), self.num_links, dtype=np.int32)

    def add_order(self, tasks: ArrayLike, others: ArrayLike) -> None:
        """Make each of `tasks` start after the corresponding one of `others`."""
        self._add_pairs("after_task", tasks, "after_other", others)

    def use(self, tasks: ArrayLike, resources: ArrayLike) -> None:
        """Make each of `tasks` use the corresponding resource while it runs."""
        self._add_pairs("uses_task", tasks, "uses_resource", resources)

    def cross(self, tasks: ArrayLike, links: ArrayLike) -> None:
        """Make each of `tasks` carry its bytes over the corresponding link."""
        self._add_pairs("crosses_task", tasks, "crosses_link", links)

    def simulate(self) -> Timeline:
        """Simulate the tasks on a virtual clock.

        Raises:
            SimulationDeadlock: tasks wait for each other; the error names the first task that never began.

        Examples:
            >>> graph = hk.sim.TaskGraph()
            >>> tasks = graph.add_tasks([1.0, 1.0])
            >>> graph.add_order(tasks, tasks[::-1])  # each waits for the other
            >>> graph.simulate()
            Traceback (most recent call last):
            hocket.errors.SimulationDeadlock: 2 of 2 tasks wait for each other; the first is task 0
        """
        *columns, num_over = _native.simulate(
            self._column("duration_s", np.float64),
            self._column("nbytes", np.float64),
            self._column("after_task", np.int32),
            self._column("after_other", np.int32),
            self._column("uses_task", np.int32),
            self._column("uses_resource", np.int32),
            self._column("crosses_task", np.int32),
            self._column("crosses_link", np.int32),
            self._column("capacity", np.int32),
            self._column("in_order", np.uint8),
            self._column("bandwidth", np.float64),
        )
        timeline = Timeline(*columns)
        if num_over < self.num_tasks:
            stuck = tuple(np.flatnonzero(timeline.end_s < 0).tolist())
            raise SimulationDeadlock(
                f"{len(stuck)} of {self.num_tasks} tasks wait for each other; the first is task {stuck[0]}", stuck
            )
        return timeline

    def _add(self, name: str, values: NDArray[Any]) -> None:
        self._columns.setdefault(name, []).append(values)

    def _add_pairs(self, first: str, tasks: ArrayLike, second: str, others: ArrayLike) -> None:
        pairs = np.broadcast_arrays(np.asarray(tasks, np.int32), np.asarray(others, np.int32))
        self._add(first, np.ravel(pairs[0]))
        self._add(second, np.ravel(pairs[1]))

    def _column(self, name: str, dtype: Any) -> NDArray[Any]:
        parts = self._columns.get(name, [])
        return np.ascontiguousarray(np.concatenate(parts) if parts else np.zeros(0), dtype)
