"""A rank of a job with two MPIs in each process: runs random programs over both and shared memory.

two_mpis_rank.py OPEN_MPI FIRST_SEED NUM_SEEDS

OPEN_MPI is the name of the backend for Open MPI.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from programs import Runner, make_communicators, random_program

import hocket as hk


def main() -> None:
    open_mpi, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    comm = hk.init(backends=["shm", open_mpi, "mpi:mpich"], timeout=60)
    assert set(comm.backends) == {"shm", open_mpi, "mpi:mpich"}, comm.backends
    assert comm.backends[open_mpi].startswith("Open MPI v5") and comm.backends["mpi:mpich"].startswith("MPICH 5")
    one, other = np.full(100_000, comm.rank + 1.0), np.full(100_000, comm.rank + 2.0)
    works = [comm.all_reduce(one, backend=open_mpi, async_op=True)]
    works.append(comm.all_reduce(other, backend="mpi:mpich", async_op=True))
    for work in works:
        work.wait()
    assert (one == 3).all() and (other == 5).all()
    communicators, members = make_communicators(comm)
    runner = Runner(communicators, members, comm.rank)
    for seed in range(first, first + count):
        runner.run(random_program(seed, list(comm.backends), members, random.Random(seed).randint(3, 25)), seed)
    comm.barrier()
    used = {each.backend for made in communicators if made for each in made.records()}
    assert used == {"shm", open_mpi, "mpi:mpich"}, used
    comm.finalize()
    print("all programs went through", flush=True)


if __name__ == "__main__":
    main()
