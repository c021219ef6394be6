"""One rank of overlap.py: an all_reduce alone, a matrix product that takes as long alone, and both at once.

overlap_rank.py hocket FILE BACKENDS NBYTES...

FILE gets the seconds of processor time that rank 0 spends on one of each, by case and name.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import product, repeat
from pathlib import Path
from statistics import median

import numpy as np
from libraries import size_name

import hocket as hk
from hocket.measure import Contender, pin, serve

PARTS = ("all_reduce", "product", "together")
WIDTH = 192  # of the matrices: one product is short beside an all_reduce, and in the processor's caches
SOME = 100  # products that are timed
Loop = Callable[[int], None]


def seconds_of(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter, times: int = 7) -> float:
    taken = []
    for _ in range(times):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return median(taken)


def parts_of(comm: hk.Communicator, backend: str, nbytes: int) -> dict[str, Callable[[], None]]:
    x = comm.zeros(nbytes // 4) if backend == "symmetric" else np.zeros(nbytes // 4, np.float32)
    how = {"backend": "shm" if backend == "symmetric" else backend}
    a, b = np.random.default_rng(0).random((2, WIDTH, WIDTH), np.float32)
    out = np.empty_like(a)

    def reduce() -> None:
        comm.all_reduce(x, **how)

    def multiply(times: int) -> None:
        for _ in repeat(None, times):
            np.matmul(a, b, out)

    reduce()
    multiply(SOME)
    comm.barrier()
    times = np.array([seconds_of(reduce), seconds_of(lambda: multiply(SOME)) / SOME])
    comm.all_reduce(times, "max", backend=next(iter(comm.backends)))
    num_products = max(1, round(times[0] / times[1]))

    def together() -> None:
        work = comm.all_reduce(x, async_op=True, **how)
        multiply(num_products)
        work.wait()

    return dict(zip(PARTS, (reduce, lambda: multiply(num_products), together), strict=True))


def looped(call: Callable[[], None]) -> Loop:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call()

    return run


def main() -> None:
    _, file, backends, *sizes = sys.argv[1:]
    names = backends.split(",")
    comm = hk.init(backends=list(dict.fromkeys("shm" if name == "symmetric" else name for name in names)))
    pin(comm.rank)  # of two hosts as well: each has a processor of its own here
    contenders = []
    spent = []
    for backend, nbytes in product(names, map(int, sizes)):
        for name, call in parts_of(comm, backend, nbytes).items():
            case = f"{backend}, {size_name(nbytes)}"
            comm.barrier()
            spent.append([case, name, seconds_of(call, time.process_time, 20)])
            contenders.append(Contender(case, name, looped(call)))
    if comm.rank == 0:
        Path(file).write_text(json.dumps(spent))
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
