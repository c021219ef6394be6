"""What was chosen in a run and why: asked again of the table that the run names, and against another implementation."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import hocket as hk
from hocket import observe
from hocket.comm.policy import Group
from hocket.observe.analysis import choices

pytestmark = pytest.mark.timeout(180)
_PROGRAM = """
import numpy as np
import hocket as hk
with hk.init(backends=["shm", "mpi"]) as comm:
    for _ in range(10):
        comm.all_reduce(np.ones(1000, np.float32))
        comm.broadcast(np.ones(1000, np.float32), root=0)
    for _ in range(5):
        comm.all_reduce(np.ones(1000, np.float32), backend="shm")
"""


def _table(path: Path, shm_s: float, mpi_s: float, num_ranks: int = 2) -> None:
    with hk.init(backends=["shm", "mpi"]) as comm:
        machine = hk.tune.this_machine(comm.backends)
    rows = tuple(
        hk.tune.Row("all_reduce", "full", num_ranks, 4096, name, False, seconds, 0.99 * seconds, 1.01 * seconds)
        for name, seconds in (("shm", shm_s), ("mpi", mpi_s))
    )
    hk.tune.save_table(hk.tune.Table(machine, rows), path)


def _recorded(folder: Path, program: str, name: str, table: Path | None) -> tuple[observe.RunChoice, ...]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(folder / "program.py")]
    variables = {"HOCKET_TABLE": str(table)} if table else {"XDG_CACHE_HOME": str(folder)}
    with mock.patch.dict(os.environ, variables):
        assert observe.record_run(command, folder / name).exit_code == 0
    return _choices_of(folder / name)


def _choices_of(folder: Path) -> tuple[observe.RunChoice, ...]:
    run = observe.open_run(folder)
    return observe.choices_of(observe.totals_of(run), observe.observations_of(run))


def test_a_run_says_which_table_chose_and_the_table_says_why(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    path = tmp_path / "table.json"
    _table(path, 5e-6, 2e-6)
    found = _recorded(tmp_path, _PROGRAM, "run", path)
    policy = hk.tune.TablePolicy(hk.tune.load_table(path))
    chosen, forced = (
        next(each for each in found if (each.op, each.carrier) == ("all_reduce", name)) for name in ("mpi", "shm")
    )
    why, candidates = policy.explain(Group(2, ("shm", "mpi")), "all_reduce", "full", 4000)
    assert (chosen.why, chosen.source) == (why, candidates[0].source)
    assert str(path) in chosen.why
    assert chosen.expected_s == pytest.approx(2e-6)
    assert forced.expected_s == pytest.approx(5e-6)
    # The same run has done it in both ways.
    observed = {each.carrier: each.median_s for each in observe.observations_of(observe.open_run(tmp_path / "run")).rows
                if each.op == "all_reduce"}  # fmt: skip
    for one, other in ((chosen, forced), (forced, chosen)):
        assert (one.other, one.other_source) == (other.carrier, "in this run")
        assert (one.median_s, one.other_s) == (observed[one.carrier], observed[other.carrier])
        assert one.saved_s == pytest.approx(one.count * (one.other_s - one.median_s))
    assert (chosen.count, forced.count) == (20, 10)
    rows = observe.query_run(observe.open_run(tmp_path / "run"), "SELECT op, carrier, why FROM choices").rows
    assert [*rows] == [(each.op, each.carrier, each.why) for each in found]
    # Another table at that place is not believed to be the one of the run.
    _table(path, 2e-6, 5e-6)
    again = _choices_of(tmp_path / "run")
    changed = next(each for each in again if each.op == "broadcast")
    assert str(path) in changed.why and changed.expected_s is None and changed.saved_s is None


def test_a_model_and_a_fixed_policy(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    modelled = _recorded(tmp_path, _PROGRAM, "modelled", None)
    group = Group(2, ("shm", "mpi"), ranks_per_host=2, ranks_per_domain=2)
    for each in modelled:
        reason, candidates = hk.tune.ModelPolicy().explain(group, each.op, "full", 4000)
        expected = {one.carrier: one.seconds for one in candidates}
        assert each.why == reason and each.source == "modelled"
        assert each.expected_s == pytest.approx(expected[each.carrier])
        assert each.saved_s is None or each.other_source == "in this run"
    assert any(each.saved_s is None and each.other_s is not None for each in modelled)
    policy = 'hk.init(backends=["shm"], policy=hk.Policy.fixed({"*": "shm"}))'
    fixed = _recorded(tmp_path, _PROGRAM.replace('hk.init(backends=["shm", "mpi"])', policy), "fixed", None)
    assert all("*=shm" in each.why and each.expected_s is None for each in fixed)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_only_measured_times_say_what_was_saved(tmp_path: Path, num_ranks: int) -> None:
    """A table of as many ranks has measured what the other library takes; from one of more ranks a model derives it."""
    pytest.importorskip("mpi4py")
    path = tmp_path / "table.json"
    _table(path, 5e-6, 2e-6, num_ranks)
    found = _recorded(tmp_path, _PROGRAM.partition("    for _ in range(5):")[0], "run", path)
    chosen = next(each for each in found if each.op == "all_reduce")
    assert chosen.other_s is not None and chosen.expected_s is not None
    saved_s = chosen.count * (chosen.other_s - chosen.expected_s)
    assert chosen.saved_s == (pytest.approx(saved_s) if num_ranks == 2 else None)


def test_measured_and_modelled_times_are_not_added_up(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from hocket.observe.serve.view import ViewSource, ViewWindow
    from hocket.observe.serve.views.tuning import VIEW
    from hocket.observe.store.owner import StoreOwner

    from .stored_rows import arrow_table, columns_of

    nan = math.nan
    columns = columns_of("choices", 5) | {
        "count": np.array([10] * 5), "expected_s": np.array([1.0, 2.0, 1.0, 9.0, nan]),
        "other_s": np.array([3.0, 1.5, 8.0, 2.0, nan]), "saved_s": np.array([20.0, -5.0, nan, nan, nan]),
    }  # fmt: skip
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        run.replace_tables({"choices": arrow_table("choices", columns)})
        answer = VIEW.make(ViewSource(run, owner), ViewWindow())
    assert (answer.saved_s, answer.lost_s, answer.num_measured) == (20.0, 5.0, 2)
    assert (answer.modelled_longer_s, answer.modelled_shorter_s, answer.num_modelled) == (70.0, 70.0, 2)
    assert answer.num_unknown == 1
    assert {(each.saved_s, each.modelled_s) for each in answer.choices} == {
        (20.0, None), (-5.0, None), (None, 70.0), (None, -70.0), (None, None),
    }  # fmt: skip


def test_policies_that_replace_each_other_are_told_apart(tmp_path: Path) -> None:
    program = _PROGRAM.replace(
        "    for _ in range(5):", '    comm.policy = hk.Policy.fixed({"*": "shm"})\n    for _ in range(5):'
    )
    found = _recorded(tmp_path, program, "changed", None)
    chosen = next(each for each in found if (each.op, each.carrier) == ("all_reduce", "shm"))
    assert chosen.expected_s is None and "2" in chosen.why


def _text(policy: dict[str, str], **group: int) -> str:
    facts = {"size": 2, "backends": ["x"], "num_hosts": 1, "ranks_per_host": 1, "ranks_per_domain": 1}
    return json.dumps({"identity": policy, "group": {**facts, **group}})


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"identity": {}, "group": {}}', '{"identity": {"policy": 1}, "group": null}', "[" * 3000,
        _text({"policy": "ModelPolicy"}, size=0), _text({"policy": "ModelPolicy"}, num_hosts=-1),
        _text({"policy": "TablePolicy", "table": "/dev/zero", "hash": "0"}), _text({"policy": "no such"}),
    ],
)  # fmt: skip
def test_texts_of_a_stranger_explain_nothing(text: str) -> None:
    _, candidates = choices._read_policy(text).explain("all_reduce", "full", 1000)
    assert candidates == []
