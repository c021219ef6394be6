"""How an operation on collections of Dask would be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distributed import Client

from hocket.dask import arrays
from hocket.dask.gang import client_of, find_gang
from hocket.errors import InvalidArgument

_OPERATIONS = ("transpose", "rechunk", "merge")


@dataclass(frozen=True)
class ExchangeExplanation:
    """How an operation on collections is done.

    Args:
        operation: "transpose", "rechunk" or "merge".
        way: "all_to_all": by one operation of hocket; "dask": by Dask.
        reason: why.

    Examples:
        >>> print(hk.dask.ExchangeExplanation("rechunk", "dask", "the cluster has 1 worker"))
        rechunk by Dask: the cluster has 1 worker
    """

    operation: str
    way: Literal["all_to_all", "dask"]
    reason: str

    def __str__(self) -> str:
        return f"{self.operation} by {'Dask' if self.way == 'dask' else 'one all_to_all of hocket'}: {self.reason}"


def explain(
    operation: Literal["transpose", "rechunk", "merge"], *collections: Any, client: Client | None = None
) -> ExchangeExplanation:
    """Return how an operation on collections would be done, and why; nothing is computed.

    Args:
        operation: name of one of the functions of `hocket.dask`.
        collections: that it gets: an array, or two tables.
        client: of the cluster; None: that of this process.

    Raises:
        InvalidArgument: there is no such operation, or it gets another number of collections.
        InvalidType: a collection is of another kind.
        InvalidState: no cluster runs.

    Examples:
        >>> import dask.array as da
        >>> with hk.dask.LocalCluster(n_workers=1, dashboard_address=None) as cluster, cluster.get_client() as client:
        ...     print(hk.dask.explain("rechunk", da.zeros(10, chunks=2), client=client))
        rechunk by Dask: the cluster has 1 worker
    """
    if operation not in _OPERATIONS:
        raise InvalidArgument(f"operation must be one of {', '.join(_OPERATIONS)}, not {operation!r:.80}")
    wanted = 2 if operation == "merge" else 1
    if len(collections) != wanted:
        raise InvalidArgument(f"{operation} gets {wanted} collections, not {len(collections)}")
    if operation == "merge":
        from hocket.dask import tables  # loads pandas

        tables.check_tables(*collections)
        obstacle = tables.obstacle_of(*collections)
    else:
        obstacle = arrays.obstacle_of(arrays.checked_array(*collections))
    gang = obstacle or find_gang(client_of(client))
    if isinstance(gang, str):
        return ExchangeExplanation(operation, "dask", gang)
    return ExchangeExplanation(operation, "all_to_all", f"{len(gang.workers)} workers are processes of one host")
