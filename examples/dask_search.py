"""A search for the best regularisation of a ridge regression: each Dask worker fits some of the candidates.

    python examples/dask_search.py
    hocket run -n 3 --dask examples/dask_search.py

The data go to each worker once, through shared memory; only scores come back.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import dask
import numpy as np
from distributed import Client, as_completed

import hocket as hk

NUM_FOLDS = 4


def make_data(num_rows: int, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and targets: a few features matter, and there is noise."""
    random = np.random.default_rng(7)
    features = random.standard_normal((num_rows, num_features))
    weights = np.zeros(num_features)
    weights[:5] = 3, -2, 1.5, 1, -1
    return features, features @ weights + 3 * random.standard_normal(num_rows)


def score(strength: float, data: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Return a strength, and the mean squared error on the folds that were held out."""
    features, targets = data
    folds = np.arange(len(targets)) % NUM_FOLDS
    errors = []
    for fold in range(NUM_FOLDS):
        x, y = features[folds != fold], targets[folds != fold]
        weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ y)
        errors.append(np.mean((features[folds == fold] @ weights - targets[folds == fold]) ** 2))
    return strength, float(np.mean(errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=16)
    options = parser.parse_args()
    is_ready = dask.config.get("scheduler-address", None) is not None  # by `hocket run --dask`
    cluster = nullcontext() if is_ready else hk.dask.LocalCluster(n_workers=2, threads_per_worker=1)
    with cluster as local, Client(local) as client:
        client.wait_for_workers(1, timeout=60)
        (data,) = client.scatter([make_data(options.rows, options.features)], broadcast=True)
        strengths = np.logspace(-2, 4, options.candidates).tolist()
        best = (float("nan"), float("inf"))
        fits = client.map(score, strengths, data=data)
        for number, (_, found) in enumerate(as_completed(fits, with_results=True), 1):
            best = min(best, found, key=lambda each: each[1])
            print(f"{number:2d} of {len(fits)}: strength {found[0]:9.3f}, error {found[1]:7.3f}")
        print(f"the best strength is {best[0]:.3f}, with an error of {best[1]:.3f}")


if __name__ == "__main__":
    main()
