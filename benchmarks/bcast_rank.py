"""One rank of hocket in bcast.py: its broadcasts over every library and by several schedules, checked, then served.

bcast_rank.py hocket BACKENDS NBYTES...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import repeat

import numpy as np
from libraries import size_name

import hocket as hk
from hocket.measure import Contender, pin, serve
from hocket.session.schedules import LazySchedules

SCHEDULES = ("chain", "circulant", "binomial", "scatter_ring")


def ways(comm: hk.Communicator, backend: str, nbytes: int) -> list[str]:
    """The library's own way, and schedules with the number of blocks that the model thinks best."""
    source = LazySchedules()
    named = [source.complete("broadcast", name, comm._chooser.group, nbytes) for name in SCHEDULES]
    return ["native", *map(str, named)]


def looped(comm: hk.Communicator, x: np.ndarray, backend: str, algorithm: str) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            comm.broadcast(x, 0, backend=backend, algorithm=algorithm)

    return run


def main() -> None:
    _, backends, *sizes = sys.argv[1:]
    comm = hk.init(backends=backends.split(","), policy=hk.Policy.fixed({"*": backends.split(",")[0]}))
    pin(comm.local_rank)
    contenders = []
    for nbytes in map(int, sizes):
        x = np.zeros(nbytes // 4, np.float32)
        for backend in backends.split(","):
            for algorithm in ways(comm, backend, nbytes):
                x.fill(comm.rank + 1)
                run = looped(comm, x, backend, algorithm)
                run(1)
                if not (x == 1).all():
                    raise AssertionError(f"{backend}, {algorithm}: {x[:4]} instead of ones in {x.size} float32")
                name = f"{backend} {algorithm.partition('(')[0]}"
                contenders.append(Contender(f"broadcast {size_name(nbytes)}", name, run))
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
