"""First steps: reduce, gather, groups. Run it with ``hocket run -n 4 examples/all_reduce.py``."""

import numpy as np

import hocket as hk

comm = hk.init()
x = np.full(3, comm.rank + 1.0, np.float32)
comm.all_reduce(x)  # in place, on every rank
work = comm.all_reduce(x, "max", async_op=True)  # runs while this rank computes
work.wait()

table = np.empty((comm.size, 3), np.float32)
comm.all_gather(table, x)

pair = comm.split(comm.rank // 2)  # one communicator for each pair of ranks
ranks = np.array([comm.rank])
pair.all_reduce(ranks)
print(f"rank {comm.rank} of {comm.size}: sum {x[0]:g}, the ranks of my pair sum to {ranks[0]}")
if comm.rank == 0:
    print("last operation:", comm.records()[-1])
comm.finalize()
