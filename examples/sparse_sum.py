"""Sum the largest elements of an array step by step; what is small waits in the residual.

hocket run -n 2 examples/sparse_sum.py
"""

import numpy as np

import hocket as hk

SIZE, DENSITY, STEPS = 100_000, 0.01, 20

with hk.init() as comm:
    state = hk.ResidualState("gradient")
    own, out = np.zeros(SIZE), np.zeros(SIZE)
    for step in range(STEPS):
        x = np.random.default_rng((comm.rank, step)).standard_normal(SIZE).astype(np.float32) ** 3
        own += x
        found = comm.sparse_all_reduce(x, density=DENSITY, state=state, dense="never")
        out += x  # what has arrived
    comm.all_reduce(own)  # what should arrive in the end
    left = state.residual.astype(np.float64)
    comm.all_reduce(left)
    if comm.rank == 0:
        arrived = np.abs(out).sum() / np.abs(own).sum()
        print(f"{len(found.places)} of {SIZE} elements a step; after {STEPS} steps {arrived:.0%} of the sum is there")
        print(f"arrived and waiting together differ from the sum by at most {np.abs(out + left - own).max():.1e}")
