"""An inner join of two tables whose equal keys lie in different partitions, on Dask workers that share memory.

    python examples/dask_merge.py
    hocket run -n 3 --dask examples/dask_merge.py

With cuDF and a GPU, ``--dataframe cudf`` makes tables on the GPU, which Dask joins itself.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, wait

import hocket as hk


def make_partition(num_rows: int, num_partitions: int, number: int, side: str) -> pd.DataFrame:
    """Return rows whose keys are spread over all partitions of the other table."""
    random = np.random.default_rng((number, len(side)))
    keys = random.permutation(num_rows) * num_partitions + number
    if side == "right":
        keys = keys[: num_rows // 3] // num_partitions * num_partitions + random.integers(0, num_partitions)
    return pd.DataFrame({"key": keys, f"{side}_value": random.random(len(keys))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=50_000, help="of each partition of the left table")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--dataframe", choices=["pandas", "cudf"], default="pandas")
    options = parser.parse_args()
    is_ready = dask.config.get("scheduler-address", None) is not None  # by `hocket run --dask`
    cluster = nullcontext() if is_ready else hk.dask.LocalCluster(n_workers=2, threads_per_worker=1)
    with cluster as local, Client(local) as client:
        client.wait_for_workers(1, timeout=60)
        make = partial(make_partition, options.rows, options.partitions)
        tables: list[Any] = [dd.from_map(make, range(options.partitions), side=side) for side in ("left", "right")]
        if options.dataframe == "cudf":
            tables = [each.to_backend("cudf") for each in tables]
        left, right = client.persist(tables)
        wait([left, right])
        explanation = hk.dask.explain("merge", left, right, on="key")
        print(explanation)
        for way in ("dask", "all_to_all") if explanation.exchange_s is not None else ("dask",):
            begin_s = time.perf_counter()
            found = client.persist(hk.dask.merge(left, right, on="key", way=way))
            wait(found)
            print(f"{way}: {time.perf_counter() - begin_s:.3f} s, {len(found)} rows")


if __name__ == "__main__":
    main()
