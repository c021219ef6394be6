"""The share of an asynchronous all_reduce that a matrix product of equal length hides.

Two hosts of the laboratory (lab.py), with one rank on each and a link of 1 Gbit/s: the target is to hide at least 60 %.

One host, over shared memory: the processors that multiply also move the data, so there is no target. The report shows
the hidden share and the processor time of both together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product, repeat
from statistics import median

import numpy as np
from claim import Options, PartResults, measure_jobs, measure_with_facts, run_claim
from lab import NUM_HOSTS, Lab
from libraries import job, lab_job
from ranks import serve_all

import hocket as hk
from hocket.comm.policy import format_nbytes
from hocket.measure import Contender, Measurement, Row, computed, judge_values, pin
from hocket.measure.loops import Call, looped

MIB = 1 << 20
SIZES = (MIB, 4 * MIB, 16 * MIB)
RATE_GBIT_S = 1.0
LEAST_HIDDEN = 0.6
PARTS = ("all_reduce", "product", "together")
WIDTH = 192  # of the matrices: a product is short compared with an all_reduce, and fits in the caches
NUM_TIMED_PRODUCTS = 100


def median_seconds(call: Call, clock: Callable[[], float] = time.perf_counter, repeats: int = 7) -> float:
    seconds = []
    for _ in range(repeats):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return median(seconds)


def parts_of(comm: hk.Communicator, backend: str, nbytes: int) -> dict[str, Call]:
    x = comm.zeros(nbytes // 4) if backend == "symmetric" else np.zeros(nbytes // 4, np.float32)
    how = {"backend": "shm" if backend == "symmetric" else backend}
    a, b = np.random.default_rng(0).random((2, WIDTH, WIDTH), np.float32)
    out = np.empty_like(a)

    reduce = partial(comm.all_reduce, x, **how)

    def multiply(times: int) -> None:
        for _ in repeat(None, times):
            np.matmul(a, b, out)

    reduce()
    multiply(NUM_TIMED_PRODUCTS)
    comm.barrier()
    reduce_s = median_seconds(reduce)
    product_s = median_seconds(partial(multiply, NUM_TIMED_PRODUCTS)) / NUM_TIMED_PRODUCTS
    times = np.array([reduce_s, product_s])
    comm.all_reduce(times, "max", backend=next(iter(comm.backends)))
    num_products = max(1, round(times[0] / times[1]))

    def together() -> None:
        work = comm.all_reduce(x, async_op=True, **how)
        multiply(num_products)
        work.wait()

    return dict(zip(PARTS, (reduce, partial(multiply, num_products), together), strict=True))


def serve_rank(_: str, backends: str, *sizes: str) -> None:
    """Run one rank: an all_reduce alone, a matrix product of the same duration alone, and both together.

    The facts of rank 0 are its seconds of processor time for one of each, by case and name.
    """
    names = backends.split(",")
    comm = hk.init(backends=list(dict.fromkeys("shm" if name == "symmetric" else name for name in names)))
    pin(comm.rank)  # also with two hosts: each rank has its own processor of this machine
    contenders = []
    cpu_times = []
    for backend, nbytes in product(names, map(int, sizes)):
        for name, call in parts_of(comm, backend, nbytes).items():
            case = f"{backend}, {format_nbytes(nbytes)}"
            comm.barrier()
            cpu_times.append([case, name, median_seconds(call, time.process_time, 20)])
            contenders.append(Contender(case, name, looped(call)))
    serve_all(comm, contenders, cpu_times)


def two_hosts(options: Options) -> PartResults:
    with Lab(RATE_GBIT_S) as lab:
        ranks = lab_job("hocket", lab, __file__, ["mpi,gloo", *SIZES], 1)
        measurement = measure_jobs([ranks], "two hosts", options.settings)
    where = f"{NUM_HOSTS} hosts, {RATE_GBIT_S:g} Gbit/s"
    # Users can choose either library, so only the better one has a target.
    rows = [
        hidden_row(measurement, f"{backend}, {format_nbytes(nbytes)}", where, target)
        for backend, target in (("mpi", LEAST_HIDDEN), ("gloo", None))
        for nbytes in SIZES
    ]
    yield rows, measurement


def one_host(options: Options) -> PartResults:
    jobs = [job("hocket", __file__, ["shm,symmetric", *SIZES], 2)]
    measurement, facts = measure_with_facts(jobs, "one host", options.settings)
    rows = []
    cpu_s = {(case, name): seconds for case, name, seconds in facts}
    for case in measurement.cases:
        rows.append(hidden_row(measurement, case, "one host", None))
        reduce, multiply, together = (1e6 * cpu_s[case, part] for part in PARTS)
        label = f"one host: {case}, processor time of rank 0, together"
        rows.append(computed(label, "one after the other", together, reduce + multiply, "us"))
    yield rows, measurement


def hidden_row(measurement: Measurement, case: str, where: str, target: float | None) -> Row:
    """Return a row whose ratio is the hidden share of the all_reduce, relative to the shorter of both times."""
    reduce, multiply, together = (measurement.times(case, part) for part in PARTS)
    shares = [(r + m - t) / min(r, m) for r, m, t in zip(reduce, multiply, together, strict=True)]
    one_by_one = [r + m for r, m in zip(reduce, multiply, strict=True)]
    case = f"{where}: {case}, product and all_reduce together"
    return judge_values(case, "one after the other", together, one_by_one, values=shares, target=target)


if __name__ == "__main__":
    run_claim(
        "a matrix product of equal length hides an all_reduce; the ratio is the hidden share",
        {"one host": one_host, "two hosts": two_hosts},
        needs_lab=lambda options: "two hosts" in options.parts,
    )
