"""The search for a number of clusters: the numbers are divided between the ranks.

Each rank finds the clusters for its numbers by itself. Rank 0 gathers the inertias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.apps.base import Problem
from hocket.comm import Communicator
from hocket.errors import WrongResult

_FEATURES = 16
_MAX_CLUSTERS = 24
_ITERATIONS = 12
Rows = NDArray[np.float64]


class ClusterSearch(Problem):
    """k-means (Lloyd, 12 iterations from the first k rows) for k = 1 to 24, and the inertia of each.

    The scale is the number of rows. They are normally distributed around twelve centres.
    """

    name = "kmeans"
    usual_scale = 6000
    least_scale = _MAX_CLUSTERS
    has_oracle = True

    def _make(self, random: np.random.Generator) -> None:
        centres = 4 * random.standard_normal((12, _FEATURES))
        self._rows = centres[random.integers(12, size=self.scale)] + random.standard_normal((self.scale, _FEATURES))

    def solve(self, comm: Communicator) -> NDArray[np.float64] | None:
        is_root = comm.rank == 0
        rows = self._rows if is_root else np.empty_like(self._rows)
        comm.broadcast(rows, 0)
        by_rank = numbers_by_rank(comm.size)
        own = self.do(comm, lambda: [inertia(rows, k) for k in by_rank[comm.rank]])
        found = np.asarray(own if own is not None else [0.0] * len(by_rank[comm.rank]))
        counts = [len(each) for each in by_rank]
        gathered = np.empty(_MAX_CLUSTERS) if is_root else None
        comm.gatherv(gathered, found, counts, 0)
        if gathered is None:
            return None
        solution = np.empty_like(gathered)
        solution[[k - 1 for numbers in by_rank for k in numbers]] = gathered
        return solution

    def solve_alone(self) -> NDArray[np.float64]:
        return np.asarray([inertia(self._rows, k) for k in range(1, _MAX_CLUSTERS + 1)])

    def num_items(self, rank: int, size: int) -> float:
        return float(sum(numbers_by_rank(size)[rank]))

    def work(self, rank: int, size: int) -> object:
        return [inertia(self._rows, k) for k in numbers_by_rank(size)[rank]]

    def check(self, solution: Any) -> None:
        kmeans = self.oracle("cluster").KMeans
        for k in (1, 7, _MAX_CLUSTERS):
            oracle = kmeans(k, init=self._rows[:k], n_init=1, max_iter=_ITERATIONS, tol=0, algorithm="lloyd")
            expected = oracle.fit(self._rows).inertia_
            if not np.isclose(solution[k - 1], expected, rtol=1e-6):
                raise WrongResult(f"{self.name}: inertia {solution[k - 1]} of {k} clusters, {expected} in scikit-learn")


def numbers_by_rank(size: int) -> list[list[int]]:
    """Return the numbers of clusters of each rank.

    The largest number is assigned first, and each number goes to the rank that has the least work so far.
    """
    found: list[list[int]] = [[] for _ in range(size)]
    for k in range(_MAX_CLUSTERS, 0, -1):
        min(found, key=sum).append(k)
    return found


def inertia(rows: Rows, k: int) -> float:
    """Return the sum of squared distances of rows to the nearest of k centres.

    The centres come from Lloyd's iterations, which start from the first k rows.
    """
    centres = rows[:k]
    squares = np.einsum("ij,ij->i", rows, rows)
    for _ in range(_ITERATIONS):
        distances = _distances(rows, squares, centres)
        nearest = distances.argmin(1)
        counts = np.bincount(nearest, minlength=k)
        sums = np.stack([np.bincount(nearest, column, minlength=k) for column in rows.T], axis=1)
        empty = np.flatnonzero(counts == 0)
        if empty.size:  # the rows farthest from their centres become new clusters, as in scikit-learn
            farthest = np.argsort(distances.min(1))[: -empty.size - 1 : -1]
            np.subtract.at(sums, nearest[farthest], rows[farthest])
            np.subtract.at(counts, nearest[farthest], 1)
            sums[empty], counts[empty] = rows[farthest], 1
        centres = sums / counts[:, None]
    return float(_distances(rows, squares, centres).min(1).sum())


def _distances(rows: Rows, squares: Rows, centres: Rows) -> Rows:
    distances: Rows = squares[:, None] - 2 * rows @ centres.T + np.einsum("ij,ij->i", centres, centres)
    return distances


PROBLEM = ClusterSearch
