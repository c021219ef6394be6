"""A real sweep, as small as one can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.errors import InvalidArgument
from hocket.tune import Table, TablePolicy, this_machine
from hocket.tune.sweep import SIZES, Sweep, measure_table

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(90)

SWEEP = Sweep(
    ("all_reduce", "all_to_all"), (16, 4096), busy_sizes=(4096,), rounds=6, min_sample_s=0.0005, schedules=False
)


def _measure(comm: hk.Communicator) -> tuple[Table, bool, list[tuple[int, int]], list[str]]:
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(60))
    rounds: list[tuple[int, int]] = []
    table = measure_table(comm, SWEEP, on_round=lambda done, wanted, state, left_s=None: rounds.append((done, wanted)))
    used = sorted({record.backend for record in comm.records()})
    comm.barrier()  # the communicator is as it was
    return table, table.machine == this_machine(comm.backends), rounds, used


def test_tiny_sweep() -> None:
    (table, is_here, rounds, used), (table_of_1, _, _, _) = hk.spawn(_measure, 2, timeout=80)
    assert is_here and used == ["mpi", "shm"]
    assert list(dict.fromkeys(rounds)) == [(done, 6) for done in range(7)]
    cells = [
        (op, dtypes, nbytes, backend, busy)
        for op, classes in (("all_reduce", ("full", "half")), ("all_to_all", ("moved",)))
        for dtypes in classes
        for nbytes in (16, 4096)
        for busy in ((False, True) if nbytes == 4096 and dtypes != "half" else (False,))
        for backend in ("shm", "mpi")
    ]
    assert [(each.op, each.dtypes, each.nbytes, each.backend, each.busy) for each in table.rows] == cells
    for row in table.rows:
        assert row.num_ranks == 2
        assert 0 < row.low <= row.seconds <= row.high < 1
    # One time is the slowest rank's, so all ranks have the same table.
    assert table_of_1.hash == table.hash


def _measure_schedules(comm: hk.Communicator) -> Table:
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(60))
    sweep = Sweep(("all_reduce", "broadcast"), (4096, 65536), busy_sizes=(), rounds=6, min_sample_s=0.0005)
    return measure_table(comm, sweep)


def test_schedules_are_measured_beside_the_libraries() -> None:
    table, table_of_1 = hk.spawn(_measure_schedules, 2, timeout=80)
    assert table_of_1.hash == table.hash
    assert [fit.backend for fit in table.fits] == list(table.machine.backends)
    # On a disturbed machine the line through few points may begin at 0.
    assert all(0 <= fit.alpha_s < 1 and 0 <= fit.beta_s < 1e-3 and fit.gamma_s > 0 for fit in table.fits)
    own = {(row.op, row.dtypes, row.nbytes, row.backend) for row in table.rows if not row.algorithm}
    own = {each for each in own if each[2] in (4096, 65536)}  # at others where a crossing was looked for
    assert len(own) == 2 * (2 * 2 + 2)  # of each backend and size: all_reduce in two classes of types, broadcast
    scheduled = [row for row in table.rows if row.algorithm]
    assert all(row.dtypes != "half" and row.low <= row.seconds <= row.high for row in scheduled)
    places = [row.place for row in table.rows]
    assert len(set(places)) == len(places)


def _measure_messages(comm: hk.Communicator) -> tuple[Table, str, str]:
    comm.finalize()
    comm = hk.init(backends=["shm", "ucx"], timeout=scaled(60))
    sweep = Sweep(("barrier", "all_reduce", "gather", "send"), (16, 4096), busy_sizes=(4096,), rounds=6,
                  min_sample_s=0.0005)  # fmt: skip
    table = measure_table(comm, sweep)
    comm.policy = TablePolicy(table)
    explained = comm.explain("all_reduce", 4096)
    x = np.ones(1024, np.float32)
    comm.all_reduce(x, backend="ucx")
    assert (x == comm.size).all()
    way = comm.records()[-1].algorithm
    return table, str(explained), way


def test_a_library_of_messages_is_measured_by_schedules() -> None:
    (table, explained, way), (table_of_1, _, _) = hk.spawn(_measure_messages, 2, timeout=80)
    assert table_of_1.hash == table.hash
    rows = [row for row in table.rows if row.backend == "ucx"]
    assert {row.op for row in rows} == {"barrier", "all_reduce", "send"}  # no schedule makes a gather
    assert all((row.algorithm == "") == (row.op == "send") and row.dtypes != "half" for row in rows)
    assert any(row.busy for row in rows)
    assert [fit.backend for fit in table.fits] == ["shm", "ucx"]
    assert f"ucx/{way} " in explained and "measured at 4096 B" in explained


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"ops": ["all_reduce", "all_reduction"]}, ["'all_reduction'", "all_to_all", "send"]),
        ({"ops": ["split"]}, ["'split'"]),
        ({"sizes": []}, ["sizes", "4", "[]"]),
        ({"sizes": [16, 0]}, ["sizes", "4", "[16, 0]"]),
        ({"sizes": [18]}, ["sizes", "4", "[18]"]),
        ({"sizes": [-4]}, ["sizes", "4", "[-4]"]),
        ({"rounds": 5}, ["rounds", "6", "5"]),
    ],
)
def test_bad_sweep(options: dict[str, Any], names: list[str]) -> None:
    with raises(InvalidArgument, names=tuple(names)):
        Sweep(**options)


def test_default_sweep_measures_busy_what_it_measures() -> None:
    assert set(Sweep().busy_sizes) <= set(SIZES)
