"""How an operation on collections of Dask would be done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from distributed import Client

from hocket.dask import arrays
from hocket.dask.choosing import ExchangeableOperation
from hocket.errors import InvalidArgument

_OPERATIONS = ("transpose", "rechunk", "merge")


@dataclass(frozen=True)
class ExchangeExplanation:
    """How an operation on collections is done.

    Args:
        operation: "transpose", "rechunk" or "merge".
        way: "all_to_all": by one operation of hocket; "dask": by Dask.
        reason: why.
        exchange_s, dask_s: seconds that each way would take once the collections are computed, estimated from costs
            that were measured in the cluster; None: an all_to_all is impossible.

    Examples:
        >>> print(hk.dask.ExchangeExplanation("rechunk", "dask", "the cluster has 1 worker"))
        rechunk by Dask: the cluster has 1 worker
    """

    operation: str
    way: Literal["all_to_all", "dask"]
    reason: str
    exchange_s: float | None = None
    dask_s: float | None = None

    def __str__(self) -> str:
        return f"{self.operation} by {'Dask' if self.way == 'dask' else 'one all_to_all of hocket'}: {self.reason}"


def explain(
    operation: Literal["transpose", "rechunk", "merge"],
    *arguments: Any,
    client: Client | None = None,
    **options: Any,
) -> ExchangeExplanation:
    """Return how an operation on collections would be done, and why; the collections are not computed.

    The first call measures what exchanges and tasks cost in the cluster: it runs small ones on all workers, which takes
    a second or two, or longer if they are busy.

    Args:
        operation: name of one of the functions of `hocket.dask`.
        arguments, options: what this function gets, beside `client`, `timeout` and `way`.
        client: of the cluster; None: that of this process.

    Raises:
        InvalidArgument: there is no such operation, or it cannot get these arguments.
        InvalidType: a collection is of another kind.
        InvalidState: no cluster runs.

    Examples:
        >>> import dask.array as da
        >>> with hk.dask.LocalCluster(n_workers=1, dashboard_address=None) as cluster, cluster.get_client() as client:
        ...     print(hk.dask.explain("rechunk", da.zeros(10, chunks=2), 5, client=client))
        rechunk by Dask: the cluster has 1 worker
    """
    if operation not in _OPERATIONS:
        raise InvalidArgument(f"operation must be one of {', '.join(_OPERATIONS)}, not {operation!r:.80}")
    prepare = _preparing(operation)
    try:
        inspect.signature(prepare).bind(*arguments, **options)
    except TypeError as error:
        raise InvalidArgument(f"{operation} cannot get these arguments: {error}") from None
    choice = prepare(*arguments, **options).choose(client)
    way: Literal["all_to_all", "dask"] = "dask" if choice.gang is None else "all_to_all"
    estimates = choice.estimates
    if estimates is None:
        return ExchangeExplanation(operation, way, choice.reason)
    return ExchangeExplanation(operation, way, choice.reason, estimates.exchange_s, estimates.dask_s)


def _preparing(operation: str) -> Callable[..., ExchangeableOperation]:
    if operation == "merge":
        from hocket.dask.tables import merging  # loads pandas

        return merging
    return arrays.transposing if operation == "transpose" else arrays.rechunking
