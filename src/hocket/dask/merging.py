"""Which row goes where, when two tables are merged: rows with equal keys meet in one partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dispatch import concat
from numpy.typing import NDArray

from hocket.dask.exchange import Seat, exchange


def partition_numbers(keys: Any, num_partitions: int) -> NDArray[np.int64]:
    """Return the partition of each row: a hash of its keys.

    Args:
        keys: a table of the keys, whose types are the same in both tables.
        num_partitions: number of partitions.
    """
    hashed = pd.util.hash_pandas_object(keys, index=False).to_numpy()
    numbers: NDArray[np.int64] = (hashed % np.uint64(num_partitions)).astype(np.int64)
    return numbers


def split_rows(table: Any, keys: Sequence[Any], num_partitions: int) -> dict[int, Any]:
    """Return the rows of each partition that has any."""
    if not len(table):
        return {}
    numbers = partition_numbers(table[list(keys)], num_partitions)
    counts = np.bincount(numbers, minlength=num_partitions)
    ends = np.cumsum(counts)
    # NumPy sorts numbers of 16 bits by radix, eight times as fast as others.
    order = np.argsort(numbers.astype(np.uint16) if num_partitions <= 1 << 16 else numbers, kind="stable")
    return {
        number: table.take(order[end - count : end])
        for number, (count, end) in enumerate(zip(counts, ends, strict=True))
        if count
    }


def merge_partitions(
    seat: Seat, parts: Sequence[Any], num_left: Sequence[int], num_partitions: int, metas: tuple[Any, Any],
    options: Mapping[str, Any],
) -> list[Any]:  # fmt: skip
    """Do one worker's part; return its partitions of the result: those whose number modulo the workers is its rank.

    Args:
        seat: of this worker.
        parts: the partitions of both tables that it has, those of the left one first.
        num_left: for each worker, how many partitions of the left table it has.
        num_partitions: of the result.
        metas: empty tables like the left and the right one.
        options: of `pandas.merge`; "left_on" and "right_on" are lists of columns.
    """
    sides = parts[: num_left[seat.rank]], parts[num_left[seat.rank] :]
    outgoing: list[tuple[dict[int, list[Any]], dict[int, list[Any]]]] = [({}, {}) for _ in range(seat.size)]
    for side, (tables, name) in enumerate(zip(sides, ("left_on", "right_on"), strict=True)):
        for table in tables:
            for number, rows in split_rows(table, options[name], num_partitions).items():
                outgoing[number % seat.size][side].setdefault(number, []).append(rows)
    incoming = exchange(seat, outgoing)

    def whole(side: int, number: int) -> Any:
        rows = [part for from_one in incoming for part in from_one[side].get(number, ())]
        # pandas' own concat gives up categories that differ
        return concat(rows) if rows else metas[side]  # type: ignore[no-untyped-call]

    return [
        pd.merge(whole(0, number), whole(1, number), **options)
        for number in range(seat.rank, num_partitions, seat.size)
    ]
