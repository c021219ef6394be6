"""Communicators made by split, group and dup give the same results, even while several of them are busy."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import hocket as hk

from .cases import Case, all_cases
from .product import run_async, run_blocking


def _some_cases(size: int, seed: int) -> list[Case]:
    return random.Random(seed).sample(all_cases(size), 150)


def _run_split(comm: hk.Communicator) -> None:
    parity = comm.split(comm.rank % 2, key=-comm.rank)
    assert parity is not None
    members = [rank for rank in reversed(range(comm.size)) if rank % 2 == comm.rank % 2]
    assert (parity.rank, parity.size) == (members.index(comm.rank), len(members))
    run_blocking(parity, _some_cases(parity.size, 1))
    run_async(parity, _some_cases(parity.size, 2))
    nested = parity.split(0 if parity.rank < 2 else None)
    assert (nested is None) == (parity.rank >= 2)
    if nested is not None:
        assert (nested.rank, nested.size) == (parity.rank, min(2, parity.size))
        run_blocking(nested, _some_cases(nested.size, 3))


def _run_group(comm: hk.Communicator) -> None:
    order = [comm.size - 1, 0, 1]
    if comm.rank in order:
        group = comm.group(order)
        assert (group.rank, group.size) == (order.index(comm.rank), 3)
        run_blocking(group, _some_cases(3, 4))
        again = comm.group(order)  # a second group of the same ranks is a separate communicator
        run_async(again, _some_cases(3, 5))
    comm.barrier()


def _run_dup(comm: hk.Communicator) -> None:
    copy = comm.dup()
    assert (copy.rank, copy.size) == (comm.rank, comm.size)
    run_async(copy, _some_cases(comm.size, 6))


def _run_interleaved(comm: hk.Communicator) -> None:
    """Operations in flight on three communicators of overlapping members, completed in any order."""
    half, copy = comm.split(comm.rank // 2), comm.dup()
    assert half is not None
    order = random.Random(comm.rank)
    for turn in range(60):
        count = (3, 700, 40_000)[turn % 3]
        works, arrays = [], []
        for team in (comm, half, copy):
            x = np.full(count, team.rank + 1, np.int32)
            arrays.append((team, x))
            works.append(team.all_reduce(x, async_op=True))
        y = np.full(count, comm.rank, np.int32)
        copy.broadcast(y, turn % comm.size)
        assert (y == turn % comm.size).all()
        order.shuffle(works)
        for work in works:
            work.wait()
        for team, x in arrays:
            assert (x == team.size * (team.size + 1) // 2).all(), (turn, team, x)


def _run_many_short_lived(comm: hk.Communicator) -> None:
    """Made, used and finalized one after another, by each rank at its own pace."""
    for turn in range(150):
        with comm.dup() as copy:
            x = np.full(5, turn)
            copy.all_reduce(x)
            assert (x == turn * comm.size).all()
            copy.barrier()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("run", "num_ranks"),
    [(_run_split, 5), (_run_group, 4), (_run_dup, 3), (_run_interleaved, 4), (_run_many_short_lived, 2)],
)
def test_communicators_made_from_others(run: Callable[[hk.Communicator], None], num_ranks: int) -> None:
    hk.spawn(run, num_ranks, timeout=50)
