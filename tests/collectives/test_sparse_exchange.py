"""Sparse sums on virtual ranks, against a sum in NumPy of all that the ranks select."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket as hk
from hocket.comm import Communicator
from hocket.sim import Link

FABRIC = Link(alpha_s=1e-6, beta_s=1e-9)
KINDS = ("spread", "clustered", "equal", "zero", "disjoint", "narrow", "tied", "cancelling")


def gradient(kind: str, rank: int, num_ranks: int, size: int, k: int, step: int = 0) -> NDArray[np.float32]:
    """Return what a rank has in a step: multiples of 1/4096 of moderate size, so that their sums are exact."""
    own, common = np.random.default_rng((rank, step)), np.random.default_rng((1000, step))
    x = np.zeros(size)
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
        x[:] = own.standard_normal(size) * 1e-3
        begin = min(size // 3, size - k)
        x[begin : begin + k] = own.standard_normal(k)
    elif kind == "tied":
        x[:] = own.integers(-2, 3, size)
    elif kind == "cancelling":
        x[:] = common.standard_normal(size) * (-1) ** rank
    return (np.rint(x * 4096) / 4096).astype(np.float32)


def largest(x: NDArray[np.float32], k: int, among: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Select by a stable sort: of equal ones the first."""
    magnitudes = np.where(among, np.abs(x), -1)
    return np.sort(np.argsort(-magnitudes, kind="stable")[: min(k, np.count_nonzero(among))])


class Reference:
    """The sparse sum of all ranks in one process."""

    def __init__(self, num_ranks: int, size: int, k: int) -> None:
        self.residuals = [np.zeros(size, np.float32) for _ in range(num_ranks)]
        self.k = k

    def step(self, arrays: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        size = len(arrays[0])
        totals = [residual + x for residual, x in zip(self.residuals, arrays, strict=True)]
        sums, is_there = np.zeros(size, np.float32), np.zeros(size, bool)
        chosen = [largest(each, self.k, each != 0) for each in totals]
        for total, places in zip(totals, chosen, strict=True):
            sums[places] += total[places]
            is_there[places] = True
        kept = largest(sums, self.k, is_there)
        for total, places in zip(totals, chosen, strict=True):
            total[np.intersect1d(places, kept)] = 0
        self.residuals = totals
        result = np.zeros(size, np.float32)
        result[kept] = sums[kept]
        return result


def summed(comm: Communicator, kind: str, size: int, k: int, num_steps: int, codec: hk.ElementCodec) -> list[Any]:
    state = hk.ResidualState()
    results = []
    for step in range(num_steps):
        x = gradient(kind, comm.rank, comm.size, size, k, step)
        comm.sparse_all_reduce(x, k, state=state, codec=codec, dense="never")
        assert state.residual is not None
        results.append((x, state.residual.copy()))
    return results


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 16])
def test_sums_and_residuals_are_those_of_numpy(num_ranks: int, kind: str) -> None:
    for (size, k), places in zip(
        ((1000, 50), (5000, 333), (64, 64), (7, 3)), ("words", "halves", "packed", "packed"), strict=True
    ):
        codec = hk.ElementCodec(places)
        of_ranks = hk.simulate(summed, num_ranks, kind, size, k, 3, codec, fabric=FABRIC).results
        reference = Reference(num_ranks, size, k)
        for step in range(3):
            wanted = reference.step([gradient(kind, rank, num_ranks, size, k, step) for rank in range(num_ranks)])
            for rank, results in enumerate(of_ranks):
                np.testing.assert_array_equal(results[step][0], wanted)
                np.testing.assert_array_equal(results[step][1], reference.residuals[rank])
