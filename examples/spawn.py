"""Start ranks from one process, as in a notebook: ``python examples/spawn.py``."""

import numpy as np

import hocket as hk


def estimate_pi(comm, samples):
    """Estimate pi by Monte Carlo: every rank draws points with its own seed, the hits are summed."""
    xy = np.random.default_rng(comm.rank).random((samples, 2))
    hits = np.array([np.count_nonzero((xy**2).sum(1) < 1)])
    comm.all_reduce(hits)
    return 4 * hits[0] / (samples * comm.size)


if __name__ == "__main__":
    results = hk.spawn(estimate_pi, 2, 1_000_000)
    print(f"pi is about {results[0]:.3f}; both ranks have the same result: {results[0] == results[1]}")
