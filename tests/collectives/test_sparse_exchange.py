"""The sparse exchange on virtual ranks, against a sum in NumPy of all that the ranks select."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket as hk
from hocket.collectives.sparse.exchange import exchange
from hocket.comm import Communicator
from hocket.sim import Link

FABRIC = Link(alpha_s=1e-6, beta_s=1e-9)
KINDS = ("spread", "clustered", "equal", "zero", "disjoint", "narrow", "tied")


def gradient(kind: str, rank: int, num_ranks: int, size: int, k: int) -> NDArray[np.float32]:
    own, common = np.random.default_rng(rank), np.random.default_rng(1000)
    x = np.zeros(size, np.float32)
    if kind == "spread":
        x[:] = own.standard_normal(size)
    elif kind == "clustered":
        x[:] = own.standard_normal(size) * 1e-3
        width = max(size // 20, 1)
        begin = int(common.integers(0, size - width + 1))
        x[begin : begin + width] += own.standard_normal(width)
    elif kind == "equal":
        x[:] = 1
    elif kind == "disjoint":
        begin, end = (size * each // num_ranks for each in (rank, rank + 1))
        x[begin:end] = own.standard_normal(end - begin)
    elif kind == "narrow":
        x[:] = own.standard_normal(size) * 1e-6
        begin = min(size // 3, size - k)
        x[begin : begin + k] = own.standard_normal(k)
    elif kind == "tied":
        x[:] = own.integers(-2, 3, size)
    return x


def largest(x: NDArray[np.float32], k: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Select by a stable sort: of equal ones the first; never zeros."""
    places = np.sort(np.argsort(-np.abs(x), kind="stable")[:k])
    places = places[x[places] != 0]
    return places.astype(np.uint32), x[places]


def exchanged(comm: Communicator, kind: str, size: int, k: int) -> tuple[Any, ...]:
    places, values = largest(gradient(kind, comm.rank, comm.size, size, k), k)
    found = exchange(comm, places, values, size, k)
    return places, values, found.places, found.values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 16])
def test_the_largest_sums_are_those_of_numpy(num_ranks: int, kind: str) -> None:
    for size, k in ((1000, 50), (5000, 333), (64, 64), (7, 3)):
        of_ranks = hk.simulate(exchanged, num_ranks, kind, size, k, fabric=FABRIC).results
        total = np.zeros(size, np.float32)
        for places, values, _, _ in of_ranks:
            total[places] += values
        wanted = largest(total, k)
        for _, _, places, values in of_ranks:
            np.testing.assert_array_equal(places, wanted[0])
            np.testing.assert_array_equal(values.view(np.uint32), wanted[1].view(np.uint32))
