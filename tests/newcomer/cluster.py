"""Simulate the time of a step on 16 and on 256 ranks, with 8 ranks per host."""

import numpy as np

import hocket as hk
from hocket.sim import Hosts, Link

GRADIENTS = np.zeros(1 << 22, np.float32)


def step(comm: hk.Communicator) -> None:
    work = comm.all_reduce(GRADIENTS, async_op=True)
    comm.compute(0.001)
    work.wait()


fabric = Hosts(Link.of(0.5, 100.0), Link.of(2.0, 12.5), ranks_per_host=8)
few, many = (hk.simulate(step, ranks, fabric=fabric, moves_data=False) for ranks in (16, 256))
print(f"16 ranks: {few.seconds * 1e3:.2f} ms, 256 ranks: {many.seconds * 1e3:.2f} ms, by {many.algorithms}")
assert 0.001 < few.seconds < many.seconds < 0.1
