"""Tables of Dask that are merged by one all_to_all of hocket."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

from hocket.dask.choosing import ExchangeableOperation, Way
from hocket.dask.costs import MEASURING_S, Estimates, MeasuredOnce, computed, shortest_s
from hocket.dask.gang import Gang, persisted
from hocket.dask.merging import merge_partitions
from hocket.errors import InvalidArgument, InvalidType

_WAYS = ("inner", "left", "right", "outer")


def merge(
    left: Any,
    right: Any,
    how: Literal["inner", "left", "right", "outer"] = "inner",
    on: Any = None,
    *,
    left_on: Any = None,
    right_on: Any = None,
    suffixes: tuple[str, str] = ("_x", "_y"),
    npartitions: int | None = None,
    way: Way = "auto",
    client: Client | None = None,
    timeout: float = 300.0,
) -> Any:
    """Merge two tables by columns, as `pandas.merge`.

    An exchange starts at once: the partitions are computed on the workers, and all rows with equal keys are sent to one
    of them. Otherwise the result is that of `dask.dataframe.merge`; a warning says why if no exchange is possible.

    Args:
        left, right: tables of Dask.
        how: "inner", "left", "right" or "outer".
        on: a column that both have, or a list of such columns; None: all that both have.
        left_on, right_on: columns of each, in the place of `on`.
        suffixes: of columns that both have and that are not merged by.
        npartitions: of the result; None: as many as the larger table has.
        way, client, timeout: as for `transpose`.

    Returns:
        A table whose rows are in no certain order; see `transpose` for what happens if a worker ends.

    Raises:
        HocketError: as for `transpose`.
        InvalidType: `left` or `right` is not a Dask DataFrame.
        InvalidArgument: a column does not exist, or `how` or `npartitions` is none that is possible.

    Examples:
        >>> import pandas as pd, dask.dataframe as dd
        >>> table = dd.from_pandas(pd.DataFrame({"key": [1, 2], "value": [3, 4]}), npartitions=1)
        >>> with hk.dask.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        ...     with cluster.get_client() as client:
        ...         print(len(hk.dask.merge(table, table, on="key", client=client)))
        2
    """
    options = {"left_on": left_on, "right_on": right_on, "suffixes": suffixes, "npartitions": npartitions}
    return merging(left, right, how, on, **options).run(client, way, timeout)


def merging(
    left: Any, right: Any, how: str = "inner", on: Any = None, *, left_on: Any = None, right_on: Any = None,
    suffixes: Any = ("_x", "_y"), npartitions: int | None = None,
) -> ExchangeableOperation:  # fmt: skip
    """Prepare what `merge` does."""
    for each in (left, right):
        if not isinstance(each, dd.DataFrame):
            raise InvalidType(f"a table must be a dask.dataframe.DataFrame, not {type(each).__name__}")
    if how not in _WAYS:
        raise InvalidArgument(f"how must be one of {', '.join(_WAYS)}, not {how!r:.80}")
    if npartitions is not None and (not isinstance(npartitions, int) or npartitions < 1):
        raise InvalidArgument(f"npartitions must be a number from 1, not {npartitions!r:.80}")
    keys = _keys(left, right, on, left_on, right_on)
    options = {"how": how, "left_on": keys[0], "right_on": keys[1], "suffixes": suffixes}
    num_parts = npartitions or max(left.npartitions, right.npartitions)

    def exchange(gang: Gang, timeout_s: float) -> Any:
        return _exchanged(gang, left, right, options, num_parts, timeout_s)

    by_dask = dd.merge(left, right, npartitions=npartitions, **options)
    return ExchangeableOperation("merge", _obstacle_of(left, right, keys), by_dask, exchange, _times_of_a_merge)


_measured = MeasuredOnce[Estimates]()


def _times_of_a_merge(gang: Gang) -> Estimates:
    """Return how long both ways take for small tables with a partition on each worker.

    More rows take longer either way: they are divided, moved and merged by the same functions of pandas.
    """
    return _measured.of(gang, lambda: _measure(gang))


def _measure(gang: Gang) -> Estimates:
    size, numbers = len(gang.workers), itertools.count()

    def prepared() -> ExchangeableOperation:
        """Return a merge that was never made before, of tables that are computed."""
        rows = pd.DataFrame({"key": np.arange(8 * size), "value": np.full(8 * size, next(numbers))})
        table: Any = dd.from_pandas(rows, npartitions=size)  # type: ignore[no-untyped-call]
        table = computed(gang, table)
        return merging(table, table, on=["key"])

    exchange_s = shortest_s(lambda small: small.exchange(gang, MEASURING_S), prepared)
    return Estimates(
        exchange_s,
        shortest_s(lambda small: computed(gang, small.by_dask), prepared),
        f"small tables on {size} workers took",
    )


def _keys(left: Any, right: Any, on: Any, left_on: Any, right_on: Any) -> tuple[list[Any], list[Any]]:
    """Return the columns of both tables by which they are merged."""
    if on is not None and (left_on is not None or right_on is not None):
        raise InvalidArgument("give either on, or left_on and right_on")
    if (left_on is None) != (right_on is None):
        raise InvalidArgument("left_on and right_on must be given together")
    if on is None and left_on is None:
        on = [each for each in left.columns if each in right.columns]
        if not on:
            raise InvalidArgument("the tables have no column of the same name: give left_on and right_on")
    keys = _listed(on if left_on is None else left_on), _listed(on if right_on is None else right_on)
    for table, columns in zip((left, right), keys, strict=True):
        for each in columns:
            if list(table.columns).count(each) > 1:
                raise InvalidArgument(f"the table has several columns {each!r:.80}: their names must differ")
            if each not in table.columns:
                raise InvalidArgument(f"there is no column {each!r:.80}, but {list(table.columns)!r:.200}")
    if len(keys[0]) != len(keys[1]) or not keys[0]:
        raise InvalidArgument(f"left_on and right_on must have as many columns, not {len(keys[0])} and {len(keys[1])}")
    return keys


def _listed(columns: Any) -> list[Any]:
    return list(columns) if isinstance(columns, list | tuple) else [columns]


def _obstacle_of(left: Any, right: Any, keys: tuple[Sequence[Any], Sequence[Any]]) -> str | None:
    """Return why the rows of tables cannot be exchanged, or None."""
    for one, other in zip(*keys, strict=True):
        types = left._meta[one].dtype, right._meta[other].dtype
        if pd.api.types.is_object_dtype(types[0]):  # 1 and 1.0 are equal, but have different hashes
            return "the keys are Python objects"
        if types[0] != types[1]:  # equal keys would have different hashes
            return f"the keys have the types {types[0]} and {types[1]}"
    for each in (left, right):
        if type(each._meta) is not pd.DataFrame:
            return f"the partitions are {type(each._meta).__module__}.{type(each._meta).__name__}, not those of pandas"
    return None


def _exchanged(
    gang: Gang, left: Any, right: Any, options: dict[str, Any], num_partitions: int, timeout_s: float
) -> Any:
    metas = left._meta, right._meta
    meta = pd.merge(*metas, **options)  # what is wrong with the options is said before anything moves
    given: dict[str, list[Any]] = {each: [] for each in gang.workers}
    num_left = []
    for table in (left, right):
        _, futures, holder_of = persisted(gang.client, table)
        for key, future in futures.items():
            given[holder_of[key] if holder_of[key] in given else gang.workers[0]].append(future)
        num_left.append([len(each) for each in given.values()])
    made = gang.run(merge_partitions, given, num_left[0], num_partitions, metas, options, timeout_s=timeout_s)
    parts = [made[number % len(made)][number // len(made)] for number in range(num_partitions)]
    return dd.from_delayed(parts, meta=meta, verify_meta=False)
