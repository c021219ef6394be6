"""Nearest neighbours: broadcast the training set, scatter the rows to classify, and gather their classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.apps.base import Problem, share_of, shares
from hocket.comm import Communicator
from hocket.errors import WrongResult

_CLASSES = 10
_NEIGHBOURS = 5
_FEATURES = 32
_BLOCK = 256  # rows whose distances are computed at once
Rows = NDArray[np.float64]
Classes = NDArray[np.int64]


class NearestNeighbours(Problem):
    """Classification of rows by the most frequent class among the five nearest training rows.

    The scale is the number of training rows, and also the number of rows to classify. Rows are normally distributed
    around one centre per class.
    """

    name = "knn"
    usual_scale = 4096
    least_scale = _NEIGHBOURS
    has_oracle = True

    def _make(self, random: np.random.Generator) -> None:
        scale = self.scale
        centres = random.standard_normal((_CLASSES, _FEATURES))
        self._classes = random.integers(_CLASSES, size=scale)
        self._rows = centres[self._classes] + random.standard_normal((scale, _FEATURES))
        self._queries = centres[random.integers(_CLASSES, size=scale)] + random.standard_normal((scale, _FEATURES))

    def solve(self, comm: Communicator) -> Classes | None:
        counts = shares(len(self._queries), comm.size)
        is_root = comm.rank == 0
        rows = self._rows if is_root else np.empty_like(self._rows)
        classes = self._classes if is_root else np.empty_like(self._classes)
        queries = np.empty((counts[comm.rank], _FEATURES))
        comm.broadcast(rows, 0)
        comm.broadcast(classes, 0)
        comm.scatterv(queries, self._queries if is_root else None, [each * _FEATURES for each in counts], 0)
        own = self.do(comm, lambda: classify(rows, classes, queries))
        if own is None:
            own = np.empty(len(queries), np.int64)
        found = np.empty(len(self._queries), np.int64) if is_root else None
        comm.gatherv(found, own, counts, 0)
        return found

    def work(self, rank: int, size: int) -> object:
        return classify(self._rows, self._classes, share_of(self._queries, rank, size))

    def check(self, solution: Any) -> None:
        classifier = self.oracle("neighbors").KNeighborsClassifier
        oracle = classifier(_NEIGHBOURS, algorithm="brute").fit(self._rows, self._classes)
        wrong = np.flatnonzero(solution != oracle.predict(self._queries))
        if wrong.size:
            raise WrongResult(f"{self.name}: {wrong.size} classes differ from scikit-learn's, first in row {wrong[0]}")


def classify(rows: Rows, classes: Classes, queries: Rows) -> Classes:
    """Return the class of each query: the most frequent one among its nearest training rows.

    If several classes are equally frequent, the smallest one is returned.

    Args:
        rows: training rows, [number, features].
        classes: classes of the training rows.
        queries: rows to classify, [number, features].
    """
    squares = np.einsum("ij,ij->i", rows, rows)
    found = np.empty(len(queries), np.int64)
    for first in range(0, len(queries), _BLOCK):
        block = queries[first : first + _BLOCK]
        distances = squares - 2 * (block @ rows.T)  # without the squares of the queries, which do not change the order
        nearest = np.argpartition(distances, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]
        votes = np.zeros((len(block), _CLASSES), np.int64)
        np.add.at(votes, (np.arange(len(block))[:, None], classes[nearest]), 1)
        found[first : first + _BLOCK] = votes.argmax(1)
    return found


PROBLEM = NearestNeighbours
