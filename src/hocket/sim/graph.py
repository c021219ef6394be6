"""A graph of tasks on resources and links, and its run on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hocket import _native
from hocket.errors import InvalidArgument, SimulationDeadlock


@dataclass(frozen=True, eq=False)
class Timeline:
    """What happened when.

    Args:
        begin_s, end_s: of every task, in seconds of the virtual clock.
        link_nbytes: that each link has carried.
        busy_s: seconds that each resource was held, summed over the tasks that it held at once.
    """

    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    link_nbytes: NDArray[np.float64]
    busy_s: NDArray[np.float64]

    @property
    def makespan_s(self) -> float:
        """When the last task ends."""
        return float(self.end_s.max(initial=0.0))


class TaskGraph:
    """Tasks, what each of them waits for, and what it holds meanwhile. Everything is added in whole columns.

    A task begins once all tasks it comes after are over and all its resources have room; it takes its duration, and
    then as long as its bytes need over its links, which are shared max-min fairly.
    """

    def __init__(self) -> None:
        self.num_tasks = 0
        self.num_resources = 0
        self.num_links = 0
        self._columns: dict[str, list[NDArray[Any]]] = {}

    def add_tasks(self, duration_s: ArrayLike, nbytes: ArrayLike = 0.0) -> NDArray[np.int32]:
        """Add tasks and return their numbers.

        Args:
            duration_s: seconds of each.
            nbytes: that each then carries over its links, if it has any.

        Raises:
            InvalidArgument: a duration or a size is negative or no number.
        """
        durations, sizes = (np.atleast_1d(np.asarray(each, np.float64)) for each in (duration_s, nbytes))
        durations, sizes = np.broadcast_arrays(durations, sizes)
        for name, values in (("duration_s", durations), ("nbytes", sizes)):
            wrong = values[~((values >= 0) & (values < np.inf))]
            if len(wrong):
                raise InvalidArgument(f"{name} of a task is 0 or more, not {wrong[0]}")
        self._add("duration_s", durations)
        self._add("nbytes", sizes)
        numbers = np.arange(self.num_tasks, self.num_tasks + len(durations), dtype=np.int32)
        self.num_tasks += len(durations)
        return numbers

    def add_resources(self, num: int, *, capacity: int = 1, in_order: bool = False) -> NDArray[np.int32]:
        """Add resources and return their numbers.

        Args:
            num: how many.
            capacity: tasks that each holds at a time.
            in_order: its tasks begin in the order of their numbers; otherwise who has waited longest goes first.
        """
        if capacity < 1:
            raise InvalidArgument(f"capacity of a resource is 1 or more, not {capacity}")
        self._add("capacity", np.full(num, capacity))
        self._add("in_order", np.full(num, in_order))
        self.num_resources += num
        return np.arange(self.num_resources - num, self.num_resources, dtype=np.int32)

    def add_links(self, bandwidth: ArrayLike) -> NDArray[np.int32]:
        """Add links, each with its bandwidth in bytes per second, and return their numbers."""
        values = np.atleast_1d(np.asarray(bandwidth, np.float64))
        if not ((values > 0) & (values < np.inf)).all():
            raise InvalidArgument(f"bandwidth of a link is above 0 B/s, not {values[~(values > 0)][:1]}")
        self._add("bandwidth", values)
        self.num_links += len(values)
        return np.arange(self.num_links - len(values), self.num_links, dtype=np.int32)

    def add_order(self, tasks: ArrayLike, others: ArrayLike) -> None:
        """Each of `tasks` comes after the one of `others` beside it."""
        self._add_pairs("after_task", tasks, "after_other", others)

    def use(self, tasks: ArrayLike, resources: ArrayLike) -> None:
        """Each of `tasks` holds the resource beside it."""
        self._add_pairs("uses_task", tasks, "uses_resource", resources)

    def cross(self, tasks: ArrayLike, links: ArrayLike) -> None:
        """Each of `tasks` carries its bytes over the link beside it."""
        self._add_pairs("crosses_task", tasks, "crosses_link", links)

    def simulate(self) -> Timeline:
        """Run the tasks on a virtual clock.

        Raises:
            SimulationDeadlock: tasks wait for each other; names the first that never began.
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
