"""The cross-wait program on plain libraries: MPI and gloo in one process, and nothing that drives both.

    python plain_libraries.py crossed|aligned

Both ranks start a large MPI all_reduce, then gloo's. Aligned: both wait for MPI first. Crossed: rank 0 waits for gloo
first, while rank 1 starts gloo's only after MPI's has completed. This is also legal, because both issue in the same
order. MPI moves large messages only inside its own calls, but rank 0 is inside gloo, so both wait forever.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import mpi4py
import numpy as np

mpi4py.rc.finalize = False  # it would wait for the other rank
from mpi4py import MPI  # noqa: E402

NUM_ITEMS = 1 << 19  # 2 MiB of float32, far above the eager limit


def main() -> None:
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    assert size == 2, f"MPI has {size} ranks"
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0, timedelta(seconds=30))
    gloo = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timedelta(seconds=600))
    x, y = np.ones(NUM_ITEMS, np.float32), torch.ones(NUM_ITEMS)
    request = MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, x)
    if rank == 0:
        work = gloo.allreduce([y])
        if sys.argv[1] == "aligned":
            request.Wait()
            work.wait()
        else:
            work.wait()
            request.Wait()
    else:
        request.Wait()
        gloo.allreduce([y]).wait()
    assert (x == 2).all() and bool((y == 2).all())
    print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
