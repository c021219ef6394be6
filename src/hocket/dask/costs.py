"""What an exchange and Dask's tasks cost in a cluster: measured once, before the first choice between the two.

An exchange takes some time whatever it moves, and some for each chunk. Dask takes some time for each of its tasks, and
these are many if many pieces go from chunk to chunk. Which is shorter depends on the cluster, so it is measured there
with small exchanges and tasks, each some times, of which the shortest counts: other tasks on the workers make such
times longer, never shorter.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import dask.array as da
import numpy as np
from distributed import Client, wait

from hocket.dask.exchange import Seat, exchange
from hocket.dask.gang import PRIORITY, Gang, persisted

_T = TypeVar("_T")
_REPEATS = 3
_NUM_TASKS = 20
"""Of a worker."""
_NUM_PARTS = 20
"""Chunks of a worker."""
_NBYTES = 8 << 20
"""That a worker sends, to all others together; and of an array that Dask moves."""
MEASURING_S = 60.0
"""No part of a measurement takes longer, or it is an error."""


@dataclass(frozen=True)
class ExchangeCosts:
    """Costs in one cluster, in seconds.

    Args:
        task_s: of a task of Dask.
        exchange_s: of an exchange that moves nothing.
        part_s: of each chunk that an exchange gets and makes.
        byte_s: of each byte that an exchange moves from one worker to another.
        moved_byte_s: of each byte that Dask moves.
    """

    task_s: float
    exchange_s: float
    part_s: float
    byte_s: float
    moved_byte_s: float


@dataclass(frozen=True)
class Estimates:
    """How long an operation would take, in seconds; computing what it gets is in neither.

    Args:
        exchange_s: by an exchange.
        dask_s: by Dask.
        basis: words before these times.
    """

    exchange_s: float
    dask_s: float
    basis: str


def estimated(costs: ExchangeCosts, num_workers: int, num_tasks: int, num_parts: int, nbytes: int) -> Estimates:
    """Estimate how long it takes to move parts of arrays.

    Args:
        costs: of the cluster.
        num_workers: of the cluster.
        num_tasks: of Dask.
        num_parts: chunks that an exchange gets, or makes if these are more.
        nbytes: of the array; as if each worker had as much of every chunk of the result.
    """
    moved = nbytes * (num_workers - 1) / num_workers
    return Estimates(
        costs.exchange_s + num_parts * costs.part_s + moved * costs.byte_s,
        num_tasks * costs.task_s + moved * costs.moved_byte_s,
        f"{num_workers} workers would take",
    )


class MeasuredOnce(Generic[_T]):
    """What was measured in clusters, for each as long as its workers are the same."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Client, tuple[tuple[int, ...], _T]] = weakref.WeakKeyDictionary()

    def of(self, gang: Gang, measure: Callable[[], _T]) -> _T:
        """Return what was measured in a cluster; measure it on the first call."""
        pids, found = self._found.get(gang.client, ((), None))
        if found is None or pids != gang.pids:
            found = measure()
            self.set(gang, found)
        return found

    def set(self, gang: Gang, found: _T) -> None:
        """Note what was measured."""
        self._found[gang.client] = gang.pids, found


measured = MeasuredOnce[ExchangeCosts]()


def costs_of(gang: Gang) -> ExchangeCosts:
    """Return the costs of a cluster, which are measured on the first call."""
    return measured.of(gang, lambda: _measure(gang))


def shortest_s(run: Callable[[Any], object], prepare: Callable[[], Any]) -> float:
    """Return the shortest time of some calls, in seconds; the first one may be that of connecting.

    Args:
        run: is timed.
        prepare: returns what it gets, new each time: Dask does not compute twice what it has.
    """
    times = []
    for _ in range(_REPEATS):
        given = prepare()
        begin_s = time.perf_counter()
        run(given)
        times.append(time.perf_counter() - begin_s)
    return min(times)


def wait_for(gang: Gang, collection: Any) -> Any:
    """Wait for futures, or a collection of them, and return it."""
    with gang.client.as_current():
        wait(collection, MEASURING_S)  # type: ignore[no-untyped-call]
    return collection


def computed(gang: Gang, collection: Any) -> Any:
    """Compute a collection on the workers, before the tasks of the program."""
    return wait_for(gang, gang.client.persist(collection, priority=PRIORITY))  # type: ignore[no-untyped-call]


def _measure(gang: Gang) -> ExchangeCosts:
    size = len(gang.workers)
    nbytes = max(_NBYTES // (size - 1), 1)  # from each worker to each other one

    def zeros(num_parts: int) -> Any:
        return computed(gang, da.zeros(size * num_parts, chunks=1))

    nothing = shortest_s(lambda x: _exchange(gang, x, 0), lambda: zeros(1))
    parts = shortest_s(lambda x: _exchange(gang, x, 0), lambda: zeros(1 + _NUM_PARTS))
    filled = shortest_s(lambda x: _exchange(gang, x, nbytes), lambda: zeros(1))
    task_s = shortest_s(lambda graph: _run(gang, graph), lambda: _tasks(size)) / (_NUM_TASKS * size)
    moved = shortest_s(lambda made: _use_elsewhere(gang, made), lambda: _made(gang))
    return ExchangeCosts(
        task_s,
        nothing,
        max(parts - nothing, 0.0) / (size * _NUM_PARTS),
        max(filled - nothing, 0.0) / (size * (size - 1) * nbytes),
        max(moved - size * task_s, 0.0) / (size * _NBYTES),
    )


def _exchange(gang: Gang, x: Any, nbytes: int) -> None:
    """Exchange as many chunks as an array has, and bytes between each two workers."""
    _, futures, holder_of = persisted(gang.client, x, MEASURING_S)
    given: dict[str, list[Any]] = {each: [] for each in gang.workers}
    for key, future in futures.items():
        given.get(holder_of[key], given[gang.workers[0]]).append(future)
    gang.run(_send_to_all, given, nbytes, timeout_s=MEASURING_S)


def _send_to_all(seat: Seat, values: Sequence[Any], nbytes: int) -> list[Any]:
    exchange(seat, [np.ones(nbytes, np.uint8)] * seat.size)
    return [np.copy(each) for each in values]


def _tasks(num_workers: int) -> dict[Any, Any]:
    """Return tasks, half of which need another one."""
    name, count = secrets.token_hex(8), _NUM_TASKS * num_workers // 2
    graph: dict[Any, Any] = {(name, "from", number): (_same, number) for number in range(count)}
    return graph | {(name, "to", number): (_same, (name, "from", number)) for number in range(count)}


def _run(gang: Gang, graph: dict[Any, Any]) -> None:
    wait_for(gang, gang.client.get(graph, list(graph), sync=False, priority=PRIORITY))  # type: ignore[no-untyped-call]


def _made(gang: Gang) -> list[Any]:
    """Return an array on each worker."""
    submit = gang.client.submit
    made: list[Any] = wait_for(
        gang,
        [submit(np.ones, _NBYTES, np.uint8, workers=[each], pure=False, priority=PRIORITY) for each in gang.workers],
    )
    return made


def _use_elsewhere(gang: Gang, made: Sequence[Any]) -> None:
    """Use each array on the next worker."""
    following = gang.workers[1:] + gang.workers[:1]
    submit = gang.client.submit
    wait_for(
        gang,
        [submit(len, array, workers=[each], priority=PRIORITY) for array, each in zip(made, following, strict=True)],
    )


def _same(value: Any) -> Any:
    return value
