"""A thousand ranks on a laptop, on a virtual clock: ``python examples/simulate.py``. Times are simulated."""

import numpy as np

import hocket as hk
from hocket.sim import Link

LAYERS = [np.zeros(12 << 20, np.float16) for _ in range(24)]  # all ranks' gradients: nobody looks at what they hold


def step(comm):
    """Gradients of one layer travel while the next one is computed, as in DistributedDataParallel."""
    works = []
    for gradients in LAYERS:
        comm.compute(0.002)  # what the backward pass of a layer takes
        works.append(comm.all_reduce(gradients, async_op=True))
    for work in works:
        work.wait()


if __name__ == "__main__":
    for name, link in {"10": Link.of(30, 1.25), "100": Link.of(2, 12.5), "400": Link.of(2, 50)}.items():
        ran = hk.simulate(step, 1024, fabric=link, moves_data=False)
        print(f"1,024 ranks, {name:>3} Gbit/s: {1e3 * ran.seconds:5.0f} ms a step, 48 of them computation (simulated)")
