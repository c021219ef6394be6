"""Descriptions of runs that say what cannot be: each is refused by the name of its field, whole runs never."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from hocket.errors import RecorderError
from hocket.observe import open_run, record_run
from hocket.observe.saved import RUN_FILE, parse_description
from hocket.observe.store.run_tables import run_tables

from ..naming import raises

FAR = 1 << 63
TASK = {"system": "Slurm", "job": "1", "step": None, "rank": FAR, "num_tasks": 1, "nodes": None}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("described") / "run"
    record_run(["cat", "/etc/hostname"], folder)
    return folder


def _changed(recorded: Path, field: str, value: Any) -> str:
    content = json.loads((recorded / RUN_FILE).read_text())
    (name,) = content["num_events"]
    return json.dumps({**content, field: json.loads(json.dumps(value).replace("NAME", name))})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lost", {"NAME": {"io": each}}) for each in (FAR, -1, 1.5, True, "1", None)),
        *(("num_events", each) for each in ({"NAME": {"io": FAR}}, {"NAME": []}, [])),
        *(("io_looks", {"NAME": each}) for each in ([FAR] * 6, [-FAR] * 6, [1] * 5, {}, "123456", [1.0] * 6)),
        *(("began_s", each) for each in (1e308, -1, True, "1", float("nan"))),
        *(("exit_code", each) for each in (FAR, 1.5, True, "0")),
        *(("anchors", each) for each in ([[0, 0], [1, FAR]], [[0, 0], [1.5, 2]], [[0, 0, 0]], {})),
        *(("readings", each) for each in ([[0, 0, float(1 << 70)]], [[0, "1", 2]], [[0, float("inf"), 2]])),
        *(("host", each) for each in (1, "h" * 10_000, "\ud800")),
        ("tasks", {"NAME": TASK}),
        ("tasks", []),
        ("ended_s", None),
        ("command", "cat"),
    ],
)
def test_a_field_that_cannot_be_is_named(recorded: Path, field: str, value: Any) -> None:
    with raises(RecorderError, names=field):
        parse_description(_changed(recorded, field, value), "a description")


def test_a_bad_description_of_a_joined_host_is_its_problem(recorded: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copytree(recorded, run)
    for number, (field, value) in enumerate({"lost": {"NAME": {"io": FAR}}, "io_looks": {"NAME": [FAR] * 6}}.items()):
        copytree(recorded, run / f"host-{number}-x")
        (run / f"host-{number}-x" / RUN_FILE).write_text(_changed(recorded, field, value))
    found = open_run(run)
    assert [each.snapshot.owner.program for each in found.processes] == ["cat /etc/hostname"]
    assert [f"host-{number}-x" in each for number, each in enumerate(found.problems)] == [True, True]
    assert "lost" in found.problems[0] and "io_looks" in found.problems[1]


def test_the_largest_counts_can_be_stored(recorded: Path, tmp_path: Path) -> None:
    """Also their sums."""
    run = tmp_path / "run"
    copytree(recorded, run)
    (run / RUN_FILE).write_text(_changed(recorded, "lost", {"NAME": {"io": FAR - 1, "operations": FAR - 1}}))
    tables = run_tables(open_run(run))
    assert tables["processes"]["num_lost"].tolist() == tables["hosts"]["num_lost"].tolist() == [FAR - 1]
