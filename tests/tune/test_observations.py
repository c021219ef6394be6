"""Times of recorded runs in tables: what they correct, what they cost, and files that are refused."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import TableError
from hocket.observe import observations_of, open_run, operations_of, record_run
from hocket.tune import (
    Machine,
    Observation,
    Observations,
    Row,
    Table,
    TablePolicy,
    learn_from,
    load_observations,
    load_table,
    regrets_of,
    save_observations,
    save_table,
)

from ..naming import raises
from ..observe.fabricated_run import MS, FakeRank, Op, fabricate
from ..program import hocket

pytestmark = pytest.mark.timeout(120)
_MACHINE = Machine("a processor", 2, 1, {"shm": "shared memory", "mpi": "MPICH", "gloo": "gloo"})


def _row(backend: str, us: float, nbytes: int = 1024, **changes: Any) -> Row:
    row = Row("all_reduce", "full", 2, nbytes, backend, False, us * 1e-6, us * 0.95e-6, us * 1.05e-6)
    return replace(row, **changes)


def _seen(backend: str, us: float, nbytes: int = 1024, count: int = 10, **changes: Any) -> Observation:
    times = tuple(us * 1e-6 * (1 + 0.001 * number) for number in range(10))
    return replace(Observation("all_reduce", "full", 2, 1, nbytes, backend, "", times, count), **changes)


def _first(table: Table, nbytes: int) -> str:
    from hocket.comm.policy import Group, range_of

    ranges = TablePolicy(table).ranges(Group(2, list(table.machine.backends)), "all_reduce", "full")
    return range_of(ranges, nbytes).ranking[0]


def test_one_carrier_corrects_its_time_and_changes_no_choice() -> None:
    table = Table(_MACHINE, (_row("shm", 2), _row("mpi", 3), _row("gloo", 9)))
    learned = learn_from(table, [_seen("shm", 8)])
    rows = {row.backend: (round(row.seconds * 1e6), row.source) for row in learned.table.rows}
    assert rows == {"shm": (8, "run"), "mpi": (3, "sweep"), "gloo": (9, "sweep")}
    assert (learned.changes, learned.unused, len(learned.used)) == ((), (), 1)
    assert _first(learned.table, 1024) == "shm"


def test_two_carriers_of_runs_decide() -> None:
    table = Table(_MACHINE, (_row("shm", 2), _row("mpi", 3), _row("gloo", 1.9, 1 << 20), _row("shm", 9, 1 << 20)))
    learned = learn_from(table, [_seen("shm", 8), _seen("mpi", 4)])
    assert learned.changes == (("all_reduce", "full", 2),)
    assert (_first(table, 1024), _first(learned.table, 1024), _first(learned.table, 1 << 20)) == ("shm", "mpi", "gloo")


@pytest.mark.parametrize(
    "changes",
    [{"seconds": (1e-6,) * 5, "count": 5}, {"num_hosts": 2}, {"backend": "nccl"}],
    ids=["few", "hosts", "other"],
)
def test_what_does_not_belong_to_the_table_is_not_used(changes: dict[str, Any]) -> None:
    table = Table(_MACHINE, (_row("shm", 2),))
    learned = learn_from(table, [replace(_seen("shm", 8), **changes)])
    assert learned.used == () and len(learned.unused) == 1 and set(learned.table.rows) == set(table.rows)


def test_cost_of_choices() -> None:
    table = Table(_MACHINE, (_row("shm", 2), _row("mpi", 3), _row("shm", 32, 16384), _row("mpi", 12, 16384)))
    found = regrets_of(
        [_seen("mpi", 5, count=1000), _seen("shm", 2.5, count=10), _seen("shm", 20, 4096, count=10)], table
    )
    assert [(each.observation.backend, each.best) for each in found] == [("mpi", "shm"), ("shm", "mpi"), ("shm", "shm")]
    # Between sizes, logarithms are interpolated: 4096 is in the middle of 1024 and 16384.
    assert found[1].best_s == pytest.approx((3 * 12) ** 0.5 * 1e-6, rel=1e-3)
    assert found[0].seconds == pytest.approx((5 * 1.0045 - 2) * 1e-6 * 1000) and found[2].seconds == 0
    assert regrets_of([_seen("shm", 3, op="broadcast", dtypes="moved")], table) == ()


@pytest.mark.parametrize(
    ("nbytes", "is_extrapolated"), [(1023, True), (1024, False), (4096, False), (16384, False), (16385, True)]
)
def test_times_beyond_the_measured_sizes_are_marked(nbytes: int, is_extrapolated: bool) -> None:
    """Those of the best carrier count: the other one was measured everywhere."""
    rows = [_row("shm", 2), _row("shm", 3, 16384), *(_row("mpi", 1e4, size) for size in (1, 1 << 20))]
    (found,) = regrets_of([_seen("mpi", 5e4, nbytes)], Table(_MACHINE, tuple(rows)))
    assert (found.best, found.is_extrapolated) == ("shm", is_extrapolated)


def test_a_size_that_the_sweep_does_not_have_changes_nothing_by_itself() -> None:
    table = Table(_MACHINE, (_row("shm", 2), _row("mpi", 3), _row("gloo", 9)))
    assert learn_from(table, [_seen("shm", 8, 4000), _seen("mpi", 12, 4000)]).changes == ()


def test_each_schedule_has_its_own_time() -> None:
    rows = (_row("shm", 9), _row("shm", 2, algorithm="ring"), _row("shm", 5, algorithm="tree"))
    (found,) = regrets_of([_seen("shm", 5, algorithm="tree", count=100)], Table(_MACHINE, rows))
    assert found.best == "shm/ring" and found.seconds == pytest.approx(100 * (5 * 1.0045 - 2) * 1e-6)


def test_a_file_keeps_all(tmp_path: Path) -> None:
    found = Observations(("a", "b"), (_seen("shm", 2), _seen("mpi", 3, algorithm="ring")))
    save_observations(found, tmp_path / "seen.json")
    assert load_observations(tmp_path / "seen.json") == found


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"op": "all_sum"}, "all_sum"), ({"dtypes": "float"}, ("float", "moved")), ({"num_ranks": 0}, "num_ranks"),
        ({"num_hosts": 3}, "num_hosts"), ({"nbytes": -1}, "nbytes"), ({"seconds": []}, "seconds"),
        ({"seconds": [float("nan")]}, "seconds"), ({"seconds": ["1"]}, "seconds"), ({"count": 1}, "count"),
        ({"backend": None}, "backend"),
    ],
)  # fmt: skip
def test_damaged_rows(tmp_path: Path, change: dict[str, Any], names: str) -> None:
    content = {
        "format": "hocket observations, version 1",
        "hosts": ["a"],
        "rows": [{**asdict(_seen("shm", 2)), **change}],
    }
    path = tmp_path / "seen.json"
    path.write_text(json.dumps(content))
    with raises(TableError, names=(str(path), "row 0", *([names] if isinstance(names, str) else names))):
        load_observations(path)


def test_the_time_of_a_collective_is_that_of_the_last_rank() -> None:
    first = [
        Op("all_reduce", number, number * 10 * MS, number * 10 * MS + 5 * MS, nbytes=400) for number in range(1, 9)
    ]
    last = [Op("all_reduce", each.number, each.begin + 3 * MS, each.end, nbytes=400) for each in first]
    lonely = Op("all_reduce", 9, 90 * MS, 91 * MS, nbytes=400)
    asynchronous = Op("all_reduce", 10, 95 * MS, 96 * MS, nbytes=400, is_async=True)
    run = fabricate([FakeRank(0, [*first, lonely, asynchronous]), FakeRank(1, [*last, asynchronous])])
    (row,) = observations_of(run, operations_of(run)).rows
    assert (row.op, row.num_ranks, row.nbytes, row.count) == ("all_reduce", 2, 400, 8)
    assert row.seconds == pytest.approx((0.002,) * 8)
    foreign = fabricate([FakeRank(rank, first, ring="foreign") for rank in range(2)])
    assert observations_of(foreign).rows == ()


_PROGRAM = """
import numpy as np
import hocket as hk
with hk.init(backends=["shm"]) as comm:
    for _ in range(30):
        comm.all_reduce(np.ones(256, np.float32))
"""


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(tmp_path / "program.py")]
    assert record_run(launch, tmp_path / "run").exit_code == 0
    (row,) = [row for row in observations_of(open_run(tmp_path / "run")).rows if row.op == "all_reduce"]
    assert (row.nbytes, row.count, row.carrier, row.dtypes) == (1024, 30, "shm", "full")
    path = tmp_path / "table.json"
    save_table(Table(_MACHINE, (_row("shm", 2e5), _row("mpi", 1e-3))), path)
    shown = hocket("tune", "learn", "--from", str(tmp_path / "run"), str(path), "--dry-run")
    assert (
        shown.returncode == 0
        and "mpi" in shown.stdout
        and load_table(path).cells["all_reduce", "full", 2, False][1024]["shm"].source == "sweep"
    )
    assert "extrapolated" not in shown.stdout
    save_table(Table(_MACHINE, (_row("mpi", 1e-3, 512),)), tmp_path / "small.json")
    guessed = hocket("tune", "learn", "--from", str(tmp_path / "run"), str(tmp_path / "small.json"), "--dry-run")
    assert "extrapolated" in guessed.stdout
    done = hocket("tune", "learn", "--from", str(tmp_path / "run"), str(path), "--json")
    said = json.loads(done.stdout)
    (regret,) = [each for each in said["regrets"] if each["observation"]["op"] == "all_reduce"]
    assert done.returncode == 0 and said["path"] == str(path) and regret["best"] == "mpi" and regret["seconds"] > 0
    learned = load_table(path).cells["all_reduce", "full", 2, False][1024]["shm"]
    assert learned.source == "run" and learned.seconds == pytest.approx(row.median_s)


def test_a_run_of_another_host_is_refused(tmp_path: Path) -> None:
    save_table(Table(_MACHINE, (_row("shm", 2),)), tmp_path / "table.json")
    save_observations(Observations(("elsewhere",), (_seen("shm", 3),)), tmp_path / "seen.json")
    arguments = ["tune", "learn", "--from", str(tmp_path / "seen.json"), str(tmp_path / "table.json")]
    refused = hocket(*arguments)
    assert refused.returncode == 2 and "elsewhere" in refused.stderr and socket.gethostname() in refused.stderr
    assert hocket(*arguments, "--any-host").returncode == 0
    missing = hocket("tune", "learn", "--from", str(tmp_path / "nothing"), str(tmp_path / "table.json"))
    assert missing.returncode == 2 and "nothing" in missing.stderr
