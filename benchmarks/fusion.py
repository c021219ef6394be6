"""Many small all_reduces over each library: one by one, concurrent, and fused into few large ones.

The arrays are 64 float32 arrays of 4 KiB, and 16 of 64 KiB, on two ranks. All variants run in the same processes and
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
from claim import Options, PartResults, measure_jobs, run_claim
from libraries import job
from ranks import serve_all

import hocket as hk
from hocket.measure import Comparison, Contender, pin
from hocket.measure.loops import looped

KIB = 1 << 10
CASES = {"64 x 4 KiB": (64, 4 * KIB), "16 x 64 KiB": (16, 64 * KIB)}
BACKENDS = ("shm", "mpi", "gloo")
PLAIN = "one by one"
WAYS = ("coalesced()", "all_reduce_coalesced", "fused()", "bucket()")


def ways(comm: hk.Communicator, xs: list, backend: str) -> Iterator[tuple[str, Callable[[], object]]]:
    def plain() -> None:
        for x in xs:
            comm.all_reduce(x, backend=backend)

    def concurrent() -> None:
        with comm.coalesced():
            plain()

    def fused() -> None:
        with comm.fused(backend=backend) as group:
            for x in xs:
                group.all_reduce(x)

    bucket = comm.bucket(backend=backend)

    def bucketed() -> None:
        handles = [bucket.all_reduce(x) for x in xs]
        for handle in handles:
            handle.wait()

    yield PLAIN, plain
    yield WAYS[0], concurrent
    yield WAYS[1], partial(comm.all_reduce_coalesced, xs, backend=backend)
    yield WAYS[2], fused
    yield WAYS[3], bucketed


def serve_rank(_: str) -> None:
    comm = hk.init(backends=BACKENDS)
    pin(comm.rank)
    contenders = []
    for case, (count, nbytes) in CASES.items():
        xs = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
        for backend in BACKENDS:
            for name, call in ways(comm, xs, backend):
                for number, x in enumerate(xs):
                    x.fill(comm.rank + number)
                call()
                assert all((x == 2 * number + 1).all() for number, x in enumerate(xs)), (case, backend, name)
                for x in xs:
                    x.fill(0)
                contenders.append(Contender(f"{case} over {backend}", name, looped(call)))
    serve_all(comm, contenders, backend="shm")


def parts(options: Options) -> PartResults:
    measurement = measure_jobs([job("fusion", __file__, [], 2)], "fusion", options.settings)
    cases = product(measurement.cases, WAYS)
    yield [Comparison(case, way, (PLAIN,), label=f"{case}: {way}") for case, way in cases], measurement


if __name__ == "__main__":
    run_claim("many small all_reduces together, against one by one", parts)
