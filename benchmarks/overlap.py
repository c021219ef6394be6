"""How much of an asynchronous all_reduce a matrix product of equal length hides.

Between two hosts of the laboratory (lab.py), one rank on each, over a link of 1 Gbit/s, where hiding at least 60 % is
wanted; and over shared memory of one host, where the processors that multiply are those that move the data: there it
is told, and what both together take of the processors' time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product, repeat
from statistics import median

import numpy as np
from claim import Found, Options, measured, measured_and_told, run_claim
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
WIDTH = 192  # of the matrices: one product is short beside an all_reduce, and in the processor's caches
SOME = 100  # products that are timed


def seconds_of(call: Call, clock: Callable[[], float] = time.perf_counter, times: int = 7) -> float:
    taken = []
    for _ in range(times):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return median(taken)


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
    multiply(SOME)
    comm.barrier()
    times = np.array([seconds_of(reduce), seconds_of(partial(multiply, SOME)) / SOME])
    comm.all_reduce(times, "max", backend=next(iter(comm.backends)))
    num_products = max(1, round(times[0] / times[1]))

    def together() -> None:
        work = comm.all_reduce(x, async_op=True, **how)
        multiply(num_products)
        work.wait()

    return dict(zip(PARTS, (reduce, partial(multiply, num_products), together), strict=True))


def serve_rank(_: str, backends: str, *sizes: str) -> None:
    """One rank: an all_reduce alone, a matrix product that takes as long alone, and both at once.

    Rank 0 tells the seconds of processor time that it spends on one of each, by case and name.
    """
    names = backends.split(",")
    comm = hk.init(backends=list(dict.fromkeys("shm" if name == "symmetric" else name for name in names)))
    pin(comm.rank)  # of two hosts as well: each has a processor of its own here
    contenders = []
    spent = []
    for backend, nbytes in product(names, map(int, sizes)):
        for name, call in parts_of(comm, backend, nbytes).items():
            case = f"{backend}, {format_nbytes(nbytes)}"
            comm.barrier()
            spent.append([case, name, seconds_of(call, time.process_time, 20)])
            contenders.append(Contender(case, name, looped(call)))
    serve_all(comm, contenders, spent)


def two_hosts(options: Options) -> Found:
    with Lab(RATE_GBIT_S) as lab:
        ranks = lab_job("hocket", lab, __file__, ["mpi,gloo", *SIZES], 1)
        measurement = measured([ranks], "two hosts", options.settings)
    where = f"{NUM_HOSTS} hosts, {RATE_GBIT_S:g} Gbit/s"
    # Either library may be chosen: what is wanted of the best is told of the other.
    rows = [
        hidden(measurement, f"{backend}, {format_nbytes(nbytes)}", where, target)
        for backend, target in (("mpi", LEAST_HIDDEN), ("gloo", None))
        for nbytes in SIZES
    ]
    yield rows, measurement


def one_host(options: Options) -> Found:
    jobs = [job("hocket", __file__, ["shm,symmetric", *SIZES], 2)]
    measurement, told = measured_and_told(jobs, "one host", options.settings)
    rows = []
    spent = {(case, name): seconds for case, name, seconds in told}
    for case in measurement.cases:
        rows.append(hidden(measurement, case, "one host", None))
        reduce, multiply, together = (1e6 * spent[case, part] for part in PARTS)
        label = f"one host: {case}, processor time of rank 0, together"
        rows.append(computed(label, "one after the other", together, reduce + multiply, "us"))
    yield rows, measurement


def hidden(measurement: Measurement, case: str, where: str, target: float | None) -> Row:
    """The share of the all_reduce's time (of the shorter one's, if they differ) that does not come on top."""
    reduce, multiply, together = (measurement.times(case, part) for part in PARTS)
    shares = [(r + m - t) / min(r, m) for r, m, t in zip(reduce, multiply, together, strict=True)]
    one_by_one = [r + m for r, m in zip(reduce, multiply, strict=True)]
    case = f"{where}: {case}, product and all_reduce together"
    return judge_values(case, "one after the other", together, one_by_one, values=shares, target=target)


if __name__ == "__main__":
    run_claim(
        "an all_reduce behind a matrix product of equal length; the ratio is the share of it that is hidden",
        {"one host": one_host, "two hosts": two_hosts},
        needs_lab=lambda options: "two hosts" in options.parts,
    )
