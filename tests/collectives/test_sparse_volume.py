"""The words that ranks send in sparse sums, by the counters of the transport, against 4k in every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.comm import Communicator

from ..tier import full
from .test_sparse_exchange import FABRIC, gradient

WORD = 4
KINDS = ("spread", "moving", "clustered", "equal", "zero", "disjoint", "narrow", "tied", "cancelling", "one region")


def stream(kind: str, comm: Communicator, size: int, k: int, step: int) -> np.ndarray:
    if kind == "moving":  # the large elements are somewhere else in each step
        x = gradient("spread", comm.rank, comm.size, size, k, step) * np.float32(2.0**-9)
        begin = step * size // 7 % (size - 2 * k)
        x[begin : begin + 2 * k] *= 512
        return x
    if kind == "one region":  # all that is kept lies in one rank's share of the array, and each rank has all of it
        x = gradient("spread", comm.rank, comm.size, size, k, step) * np.float32(2.0**-9)
        x[:k] += 1
        return x
    return gradient(kind, comm.rank, comm.size, size, k, step)


def volumes(comm: Communicator, kind: str, size: int, k: int, num_steps: int) -> list[tuple[int, int]]:
    """Return the words that this rank has sent and received in each step."""
    virtual = comm._fabric.virtual
    assert virtual is not None
    state = hk.ResidualState()
    found = []
    for step in range(num_steps):
        x = stream(kind, comm, size, k, step)
        comm.barrier()
        before = virtual.traffic(comm.rank)
        comm.barrier()
        comm.sparse_all_reduce(x, k, state=state, codec=hk.ElementCodec("words"), dense="never")
        comm.barrier()
        found.append(tuple((now - then) // WORD for now, then in zip(virtual.traffic(comm.rank), before, strict=True)))
    return found


def control_words(num_ranks: int) -> int:
    """Words a rank sends beside elements: the sizes of its parts (64 bits each), and the count in each message, its own
    ones and those that it passes on."""
    return 2 * num_ranks + 2 * num_ranks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 16, *(pytest.param(each, marks=full) for each in (32, 64))])
def test_no_step_sends_more_than_4k_words(num_ranks: int, kind: str) -> None:
    k = 20 * num_ranks
    check(num_ranks, kind, 50 * k, k, 6, 1.05 * 4 * k)


@pytest.mark.parametrize("kind", KINDS)
def test_few_elements(kind: str) -> None:
    num_ranks = 8
    for k in (1, 3, num_ranks):
        check(num_ranks, kind, 1000, k, 4, 4 * (k + num_ranks))


def check(num_ranks: int, kind: str, size: int, k: int, num_steps: int, most: float) -> None:
    of_ranks: list[Any] = hk.simulate(volumes, num_ranks, kind, size, k, num_steps, fabric=FABRIC).results
    for rank, steps in enumerate(of_ranks):
        for step, (sent, received) in enumerate(steps):
            where = f"rank {rank} of {num_ranks}, step {step}"
            assert sent <= most + control_words(num_ranks), where
            assert received <= most + control_words(num_ranks), where
    if kind == "spread" and k >= 20 * num_ranks:
        assert max(max(each) for steps in of_ranks for each in steps) <= (
            1.10 * 4 * k * (num_ranks - 1) / num_ranks + control_words(num_ranks)
        )
    if kind not in ("zero",):
        assert min(max(each) for steps in of_ranks for each in steps) > 0
