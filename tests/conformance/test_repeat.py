"""The same sum 200 times, with ranks arriving in different orders: the same bits every time and on every rank."""

from __future__ import annotations

import random
import time

import pytest

import hocket as hk

from .data import make_items, reduce_in_rank_order
from .outcome import check

_RUNS = 200
_COUNTS = (7, 1_501, 300_007)


def _run(comm: hk.Communicator, dtype: str, count: int) -> set[bytes]:
    inputs = [make_items(dtype, count, 5, rank) for rank in range(comm.size)]
    expected = reduce_in_rank_order(inputs, "sum")
    delays = random.Random(comm.rank)
    seen = set()
    for run in range(_RUNS):
        x = inputs[comm.rank].copy()
        if delays.random() < 0.3:
            time.sleep(delays.random() * 0.003)  # other ranks arrive first
        if run % 2:
            comm.all_reduce(x)
        else:
            comm.all_reduce(x, async_op=True).wait()
        check(x, expected, f"run {run}: sum of {count} {dtype}", comm.rank, reduced=True)
        seen.add(x.tobytes())
    return seen


@pytest.mark.timeout(60)
@pytest.mark.parametrize("count", _COUNTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_200_runs_give_the_same_bits(dtype: str, count: int) -> None:
    seen = hk.spawn(_run, 3, dtype, count, timeout=50)
    assert len(set().union(*seen)) == 1
