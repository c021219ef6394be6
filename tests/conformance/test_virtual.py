"""The same product on virtual ranks, and schedules on them, compared with the simulation of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives import Schedule, algorithms
from hocket.collectives.simulate import simulate
from hocket.sim import Link

from ..tier import full
from .product import run_async, run_blocking, some_cases, some_large_cases

_LINK = Link.of(2.0, 10.0)


def _run_product(comm: hk.Communicator) -> int:
    cases = some_cases(comm.size)
    large = some_large_cases(comm.size)
    return run_blocking(comm, cases) + run_async(comm, cases) + run_async(comm, large, seed=1)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_product(num_ranks: int) -> None:
    done = hk.simulate(_run_product, num_ranks, fabric=_LINK).results
    assert done == [2 * len(some_cases(num_ranks)) + len(some_large_cases(num_ranks))] * num_ranks


def _call(comm: hk.Communicator, schedule: Schedule, num_items: int) -> None:
    """Run the collective of a schedule on numbers that show which rank each value comes from."""
    kind, rank, size = schedule.collective, comm.rank, comm.size
    each = num_items // size
    given = [np.random.default_rng(peer).integers(0, 99, num_items).astype(np.float32) for peer in range(size)]
    x = given[rank].copy()
    own = slice(rank * each, (rank + 1) * each)
    out = np.zeros(each if kind == "reduce_scatter" else num_items, np.float32)
    if kind == "all_gather":
        comm.all_gather(out, x[own], algorithm=schedule)
        expected = np.concatenate([given[peer][peer * each : (peer + 1) * each] for peer in range(size)])
    elif kind in ("reduce_scatter", "all_to_all"):
        getattr(comm, kind)(out, x, algorithm=schedule)
        parts = [given[peer][own] for peer in range(size)]
        expected = np.sum(parts, axis=0) if kind == "reduce_scatter" else np.concatenate(parts)
    elif kind == "barrier":
        comm.barrier(algorithm=schedule)
        expected = out
    else:
        arguments: dict[str, Any] = {} if kind in ("all_reduce", "scan") else {"root": 0}
        getattr(comm, kind)(x, **arguments, algorithm=schedule)
        out = x
        sums = np.sum(given[: rank + 1] if kind == "scan" else given, axis=0)
        expected = given[0] if kind == "broadcast" else given[rank] if kind == "reduce" and rank else sums
    np.testing.assert_array_equal(out, expected)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3, 7, 8, pytest.param(16, marks=full)])
def test_executing_a_schedule_takes_what_simulating_it_says(num_ranks: int) -> None:
    num_items = 12 * 1024 * num_ranks
    compared = 0
    for algorithm in algorithms():
        if algorithm.restriction(num_ranks) is not None:
            continue
        schedule = algorithm.schedule(num_ranks)
        seconds = hk.simulate(_call, num_ranks, schedule, num_items, fabric=_LINK).seconds
        nbytes = 0 if schedule.collective == "barrier" else 4 * num_items
        predicted_s = simulate(schedule, nbytes, _LINK, itemsize=4).seconds
        if schedule.ports == 1:
            assert seconds == pytest.approx(predicted_s, rel=1e-9), algorithm
            compared += 1
        else:  # a connection carries one message at a time here
            assert seconds >= predicted_s * (1 - 1e-9), algorithm
    assert compared > 20
