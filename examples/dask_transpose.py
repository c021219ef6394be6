"""The sum of a random matrix with its transpose, on Dask workers that share memory.

    python examples/dask_transpose.py                     # starts two workers
    hocket run -n 3 --dask examples/dask_transpose.py     # the ranks are the cluster

With CuPy and a GPU, ``--array cupy`` makes the chunks on the GPU (not tested).
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import dask
import dask.array as da
from distributed import Client, wait

import hocket as hk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", type=int, default=2000, help="rows and columns of the matrix")
    parser.add_argument("--array", choices=["numpy", "cupy"], default="numpy")
    options = parser.parse_args()
    is_ready = dask.config.get("scheduler-address", None) is not None  # by `hocket run --dask`
    cluster = nullcontext() if is_ready else hk.dask.LocalCluster(n_workers=2, threads_per_worker=1)
    with cluster as local, Client(local) as client, dask.config.set({"array.backend": options.array}):
        client.wait_for_workers(1, timeout=60)
        x = client.persist(da.random.default_rng(1).standard_normal((options.size, options.size), chunks="4 MiB"))
        wait(x)
        explanation = hk.dask.explain("transpose", x)
        print(explanation)
        for way in ("dask", "all_to_all") if explanation.exchange_s is not None else ("dask",):
            begin_s = time.perf_counter()
            found = client.persist(x + hk.dask.transpose(x, way=way))
            wait(found)
            seconds = time.perf_counter() - begin_s
            print(f"{way}: {seconds:.3f} s, the sum of all is {float(found.sum().compute()):.3f}")


if __name__ == "__main__":
    main()
