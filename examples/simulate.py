"""Simulate 1,024 ranks on one machine: ``python examples/simulate.py``. All times are simulated."""

import numpy as np

import hocket as hk
from hocket.sim import Link

LAYERS = [np.zeros(12 << 20, np.float16) for _ in range(24)]  # shared by all simulated ranks, as values are not used


def step(comm):
    """Reduce the gradients of a layer while the next layer's are computed, as DistributedDataParallel does."""
    works = []
    for gradients in LAYERS:
        comm.compute(0.002)  # time of a layer's backward pass
        works.append(comm.all_reduce(gradients, async_op=True))
    for work in works:
        work.wait()


if __name__ == "__main__":
    for name, link in {"10": Link.of(30, 1.25), "100": Link.of(2, 12.5), "400": Link.of(2, 50)}.items():
        result = hk.simulate(step, 1024, fabric=link, moves_data=False)
        print(f"1,024 ranks, {name:>3} Gbit/s: {1e3 * result.seconds:5.0f} ms per step, 48 ms of it computation")
