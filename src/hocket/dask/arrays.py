"""Arrays of Dask that get other chunks, or another order of axes, by one all_to_all of hocket.

Dask makes a task of every piece that goes from one chunk to another. Here each worker of a host sends all that it has
for another worker at once.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from hocket.dask.choosing import ExchangeableOperation, Way
from hocket.dask.costs import Estimates, costs_of, estimated
from hocket.dask.gang import Gang, persisted
from hocket.dask.rechunking import Chunks, Index, Rechunking, exchange_chunks
from hocket.errors import InvalidArgument, InvalidType


def transpose(
    x: Any,
    axes: Sequence[int] | None = None,
    *,
    way: Way = "auto",
    client: Client | None = None,
    timeout: float = 300.0,
) -> Any:
    """Return an array with its axes in another order.

    An exchange starts at once: the chunks of `x` are computed on the workers, and exchanged. If both arrays have the
    same chunks, each chunk of the result is where the one at the same place in `x` is: ``x + transpose(x)`` moves
    nothing more. Otherwise the result is ``x.transpose(axes)``; a warning says why if no exchange is possible.

    Args:
        x: an array of Dask.
        axes: for each axis of the result, that of `x`; None: in reverse order.
        way: "all_to_all" or "dask"; "auto": the one that takes less time, as estimated from costs that are measured in
            the cluster on the first call, by small exchanges and tasks (`explain`).
        client: of the cluster; None: that of this process.
        timeout: seconds that a worker may be busy with other tasks before it takes part.

    Returns:
        An array. After an exchange its chunks are on the workers; if a worker ends, its chunks are lost, and what needs
        them fails: no task can make them again, unlike other results of Dask.

    Raises:
        InvalidType: `x` is not a Dask array.
        InvalidArgument: `axes` is not a permutation of the axes of `x`, or there is no such way.
        InvalidState: no cluster runs.
        UnsupportedCall: the client is asynchronous, or `way` is "all_to_all" and no exchange is possible.
        PeerFailure: a worker has ended meanwhile.
        CommTimeout: a worker was busy for longer than `timeout`.

    Examples:
        >>> import dask.array as da
        >>> x = da.arange(6, chunks=3).reshape((2, 3))
        >>> with hk.dask.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        ...     with cluster.get_client() as client:
        ...         print(hk.dask.transpose(x, client=client).compute().tolist())
        [[0, 3], [1, 4], [2, 5]]
    """
    return transposing(x, axes).run(client, way, timeout)


def rechunk(
    x: Any, chunks: Any = "auto", *, way: Way = "auto", client: Client | None = None, timeout: float = 300.0
) -> Any:
    """Return an array with other chunks; see `transpose` for how.

    Args:
        x: an array of Dask.
        chunks: as for `dask.array.rechunk`.
        way, client, timeout: as for `transpose`.

    Raises:
        HocketError: as for `transpose`.
        ValueError: of Dask: the chunks do not fit the array.

    Examples:
        >>> import dask.array as da
        >>> with hk.dask.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        ...     with cluster.get_client() as client:
        ...         print(hk.dask.rechunk(da.zeros(10, chunks=2), 5, client=client).chunks)
        ((5, 5),)
    """
    return rechunking(x, chunks).run(client, way, timeout)


def transposing(x: Any, axes: Sequence[int] | None = None) -> ExchangeableOperation:
    """Prepare what `transpose` does."""
    order = _checked_axes(_checked_array(x), axes)
    # Dask turns chunks in the tasks that use them; it moves them there, too.
    return _operation("transpose", x, order, da.transpose(x, order), lambda: 0)


def rechunking(x: Any, chunks: Any = "auto") -> ExchangeableOperation:
    """Prepare what `rechunk` does."""
    wanted = _checked_array(x).rechunk(chunks)  # Dask's reading of `chunks`; nothing is computed
    return _operation("rechunk", x, tuple(range(x.ndim)), wanted, lambda: len(wanted.dask) - len(x.dask))


def _operation(
    name: str, x: Any, order: tuple[int, ...], wanted: Any, num_tasks: Callable[[], int]
) -> ExchangeableOperation:
    def estimate(gang: Gang) -> Estimates:
        num_parts = max(math.prod(x.numblocks), math.prod(wanted.numblocks))
        return estimated(costs_of(gang), len(gang.workers), num_tasks(), num_parts, wanted.nbytes)

    def exchange(gang: Gang, timeout_s: float) -> Any:
        return _exchanged(gang, x, order, wanted.chunks, timeout_s)

    return ExchangeableOperation(name, _obstacle_of(x), wanted, exchange, estimate)


def _checked_array(x: Any) -> Any:
    if not isinstance(x, da.Array):
        raise InvalidType(f"x must be a dask.array.Array, not {type(x).__name__}")
    return x


def _obstacle_of(x: Any) -> str | None:
    """Return why the chunks of an array cannot be exchanged, or None."""
    if type(x._meta) is not np.ndarray:
        return f"the chunks are {type(x._meta).__module__}.{type(x._meta).__name__}, not NumPy arrays"
    if any(math.isnan(size) for sizes in x.chunks for size in sizes):
        return "the sizes of the chunks are unknown"
    return None


def _checked_axes(x: Any, axes: Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(reversed(range(x.ndim)))
    try:
        order = tuple(int(each) % x.ndim if -x.ndim <= each < x.ndim else x.ndim for each in axes)
    except (TypeError, ValueError, ZeroDivisionError):
        order = (x.ndim,)
    if sorted(order) != list(range(x.ndim)):
        raise InvalidArgument(f"axes must have each of the {x.ndim} axes of x once, not {axes!r:.80}")
    return order


def _exchanged(gang: Gang, x: Any, order: tuple[int, ...], new_chunks: Chunks, timeout_s: float) -> Any:
    """Exchange the chunks of an array.

    Args:
        gang: the workers.
        x: the array.
        order: for each axis of the result, that of x.
        new_chunks: of the result.
        timeout_s: all workers begin within this time.
    """
    x, futures, holder_of = persisted(gang.client, x)
    number_of = {address: rank for rank, address in enumerate(gang.workers)}
    # What is on no worker of the gang, or was lost meanwhile, is brought to its first one by Dask.
    holders = {key[1:]: number_of.get(holder_of[key], 0) for key in futures}
    turned = {index: tuple(index[axis] for axis in order) for index in holders}
    plan = Rechunking(order, tuple(x.chunks[axis] for axis in order), new_chunks)
    placed: dict[Index, int] = (
        dict(holders)
        if new_chunks == x.chunks
        else plan.placed({turned[each]: holders[each] for each in holders}, len(gang.workers))
    )
    mine = [[index for index in holders if holders[index] == rank] for rank in range(len(gang.workers))]
    made = gang.run(
        exchange_chunks,
        {address: [futures[(x.name, *index)] for index in mine[rank]] for rank, address in enumerate(gang.workers)},
        [[turned[index] for index in each] for each in mine],
        plan,
        placed,
        x.dtype,
        timeout_s=timeout_s,
    )
    of_rank = [iter(each) for each in made]
    name = f"hocket-exchange-{secrets.token_hex(16)}"  # its chunks cannot be made again: it equals no other array
    graph = {(name, *index): next(of_rank[rank]) for index, rank in placed.items()}
    return da.Array(graph, name, new_chunks, meta=x._meta.transpose(order))  # type: ignore[no-untyped-call]
