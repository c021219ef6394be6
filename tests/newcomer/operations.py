"""A first program: sum the arrays of all ranks, gather their blocks, and exchange messages with neighbours."""

import numpy as np

import hocket as hk

comm = hk.init()
x = np.full(1000, comm.rank, np.float32)
comm.all_reduce(x)
assert (x == sum(range(comm.size))).all()

blocks = np.empty((comm.size, 3))
comm.all_gather(blocks, np.arange(3.0) + 10 * comm.rank)
assert (blocks == np.arange(3.0) + 10 * np.arange(comm.size)[:, None]).all()

work = comm.all_reduce(x, "max", async_op=True)
work.wait()

mine, theirs = np.array([comm.rank]), np.empty(1, int)
comm.sendrecv(mine, (comm.rank + 1) % comm.size, theirs, (comm.rank - 1) % comm.size)
assert theirs[0] == (comm.rank - 1) % comm.size

pair = comm.split(comm.rank // 2)
word = pair.broadcast_object(f"from rank {comm.rank}" if pair.rank == 0 else None, root=0)
assert word == f"from rank {comm.rank // 2 * 2}"
if comm.rank == 0:
    print("correct on", comm.size, "ranks")
comm.finalize()
