"""Tables of Dask that are merged by one all_to_all of hocket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import dask.dataframe as dd
import pandas as pd
from distributed import Client

from hocket.dask.gang import Gang, client_of, find_gang, left_to_dask, persisted
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
    client: Client | None = None,
    timeout: float = 300.0,
) -> Any:
    """Merge two tables by columns, as `pandas.merge`.

    It starts at once: the partitions are computed on the workers, and all rows with equal keys are sent to one of them.
    Where that is impossible, Dask does it, and a warning says why (`explain`).

    Args:
        left, right: tables of Dask.
        how: "inner", "left", "right" or "outer".
        on: a column that both have, or a list of such columns; None: all that both have.
        left_on, right_on: columns of each, in the place of `on`.
        suffixes: of columns that both have and that are not merged by.
        npartitions: of the result; None: as many as the larger table has.
        client, timeout: as for `transpose`.

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
    check_tables(left, right)
    if how not in _WAYS:
        raise InvalidArgument(f"how must be one of {', '.join(_WAYS)}, not {how!r:.80}")
    if npartitions is not None and (not isinstance(npartitions, int) or npartitions < 1):
        raise InvalidArgument(f"npartitions must be a number from 1, not {npartitions!r:.80}")
    keys = _keys(left, right, on, left_on, right_on)
    options = {"how": how, "left_on": keys[0], "right_on": keys[1], "suffixes": suffixes}
    gang = _gang_for(left, right, keys, client_of(client))
    if isinstance(gang, str):
        left_to_dask("merge", gang)
        return dd.merge(left, right, npartitions=npartitions, **options)
    return _exchanged(gang, left, right, options, npartitions or max(left.npartitions, right.npartitions), timeout)


def check_tables(*tables: Any) -> None:
    """Raise InvalidType unless all are tables of Dask."""
    for each in tables:
        if not isinstance(each, dd.DataFrame):
            raise InvalidType(f"a table must be a dask.dataframe.DataFrame, not {type(each).__name__}")


def obstacle_of(left: Any, right: Any) -> str | None:
    """Return why the rows of tables cannot be exchanged, or None."""
    for each in (left, right):
        if type(each._meta) is not pd.DataFrame:
            return f"the partitions are {type(each._meta).__module__}.{type(each._meta).__name__}, not those of pandas"
    return None


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


def _gang_for(left: Any, right: Any, keys: tuple[Sequence[Any], Sequence[Any]], client: Client) -> Gang | str:
    for one, other in zip(*keys, strict=True):
        types = left._meta[one].dtype, right._meta[other].dtype
        if pd.api.types.is_object_dtype(types[0]):  # 1 and 1.0 are equal, but have different hashes
            return "the keys are Python objects"
        if types[0] != types[1]:  # equal keys would have different hashes
            return f"the keys have the types {types[0]} and {types[1]}"
    return obstacle_of(left, right) or find_gang(client)


def _exchanged(gang: Gang, left: Any, right: Any, options: dict[str, Any], num_partitions: int, timeout: float) -> Any:
    metas = left._meta, right._meta
    meta = pd.merge(*metas, **options)  # what is wrong with the options is said before anything moves
    given: dict[str, list[Any]] = {each: [] for each in gang.workers}
    num_left = []
    for table in (left, right):
        _, futures, holder_of = persisted(gang.client, table)
        for key, future in futures.items():
            given[holder_of[key] if holder_of[key] in given else gang.workers[0]].append(future)
        num_left.append([len(each) for each in given.values()])
    made = gang.run(merge_partitions, given, num_left[0], num_partitions, metas, options, timeout_s=timeout)
    parts = [made[number % len(made)][number // len(made)] for number in range(num_partitions)]
    return dd.from_delayed(parts, meta=meta, verify_meta=False)
