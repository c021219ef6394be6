"""Schedules survive a round trip through files; errors of invalid files name the place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.pipeline.action import Action
from hocket.pipeline.files import forms, load_schedule, save_schedule
from hocket.pipeline.formats import text, torch_csv
from hocket.pipeline.passes.concatenate import concatenate
from hocket.pipeline.passes.gradient_sync import add_gradient_sync
from hocket.pipeline.passes.lower_messages import lower_messages
from hocket.pipeline.passes.recompute import recompute
from hocket.pipeline.registry import build
from hocket.pipeline.schedule import PipelineSchedule

from ..naming import NO_SUCH_FILE, assert_names, raises
from .tables import all_schedules

pytestmark = pytest.mark.timeout(120)

HEAD = "hocket pipeline schedule, version 1\nmicro-batches: 2\npipe 0: 0 1\n"


@pytest.mark.parametrize("ending", [".txt", ".json"])
def test_round_trip_of_all_schedules(ending: str, tmp_path: Path) -> None:
    for schedule in all_schedules():
        for changed in (
            schedule,
            lower_messages(schedule),
            recompute(concatenate(add_gradient_sync(schedule, with_step=True), 3)),
            replace(schedule, edges=(*schedule.edges, (0, 3))),
        ):
            path = tmp_path / f"mine{ending}"
            save_schedule(changed, path)
            again = load_schedule(path)
            assert again == changed
            assert (again.name, again.edges) == (changed.name, changed.edges)
            assert forms()[ending].dump(again) == path.read_text()


def test_round_trip_of_torch_tables(tmp_path: Path) -> None:
    num_written = 0
    for schedule in all_schedules():
        if schedule.num_pipes > 1:
            with raises(InvalidArgument, names=(schedule.name, str(schedule.num_pipes))):
                torch_csv.dump(schedule)
            continue
        for changed in (schedule, lower_messages(schedule)):
            path = tmp_path / "mine.csv"
            save_schedule(changed, path)
            assert load_schedule(path) == changed
            num_written += 1
    assert num_written >= 18


@pytest.mark.parametrize(
    "action", ["2F0", "2F0-3", "1:2F0", "+2B0", "2SEND_F0>3", "2SYNC_START", "+1:2I4-5@3", "0W12@1"]
)
def test_round_trip_of_actions(action: str) -> None:
    parsed = Action.parse(action)
    assert parsed is not None
    assert str(parsed) == action


def test_hand_written_text() -> None:
    schedule = text.load(
        """
        hocket pipeline schedule, version 1   # in any order, with comments
        rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
        rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
        pipe 0: 0 1
        micro-batches: 1
        """
    )
    assert schedule == lower_messages(build("1f1b", 2, 1))
    assert schedule.name == "mine"


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("rank 0: 0F0 0Q0\nrank 1: 1F0", ("line 4", "action 1", "'0Q0'", "'Q'", "B")),
        ("rank 0: 0F0 F0\nrank 1: 1F0", ("line 4", "action 1", "'F0'", "2F0")),
        ("rank 0: 0F0\nrank 2: 1F0", "rank 1"),
        ("rank 0: 0F0\nrank 0: 1F0", ("line 5", "rank 0", "line 4")),
        ("rank 0: 0F0", ("2", "1")),
        ("rank 0: 0F0\nrank 1: 1F2", ("rank 1", "action 0", "1F2", "2")),
        ("rank 0: 0F0\nrank 1: 2F0", ("rank 1", "action 0", "2F0", "2")),
        ("rank 0: 0F0\nrank 1: 1:1F0", ("rank 1", "1:1F0", "1")),
        ("rank 0: 0F0\nrank 1: +1F0", ("rank 1", "action 0", "+1F0")),
        ("rank 0: 0F0\nrank 1: 1F0@1", ("rank 1", "1F0@1", "1")),
        ("rank 0: 0F0\nrank 1: 1SYNC_START0", ("rank 1", "1SYNC_START0")),
        ("rank 0: 0F0\nrank 1: 1SEND_F0", ("rank 1", "1SEND_F0>2", "2")),
        ("rank 0: 0F0\nrank 1: 1F0>0", ("rank 1", "1F0>0")),
        ("rank 0: 0F0-2\nrank 1: 1F0", ("rank 0", "0F0-2", "2")),
        ("rank 0: 0F1-0\nrank 1: 1F0", ("rank 0", "0F1")),
        ("rank 0: 0F0\nrank 1: 1F0\nedges: 1>0", "(1, 0)"),
        ("rank 0: 0F0\nrank 1: 1F0\nedges: 1-0", ("line 6", "0>2", "'1-0'")),
        ("rank 0: 0F0\nrank 1: 1F0\nsteps: x", ("line 6", "steps", "1", "'x'")),
        ("rank 0: 0F0\nrank 1: 1F0\npipe 1: 0 x", ("line 6", "pipe", "'x'")),
        ("rank 0: 0F0\nrank 1: 1F0\npipe 1: 0", ("pipe 1", "1", "pipe 0", "2")),
        ("rank 0: 0F0\nranks 1: 1F0", ("line 5", "name:", "'ranks 1: 1F0'")),
    ],
)
def test_wrong_text_is_named(lines: str, names: str | tuple[str, ...]) -> None:
    with raises(InvalidSchedule, names=names) as caught:
        text.load(HEAD + lines)
    assert_names(str(caught.value), "schedule")


def test_versions(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_schedule(build("gpipe", 2, 2), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format": "hocket pipeline schedule, version 9"}))
    with raises(InvalidSchedule, names=("mine.json", "version 9", "version 1")):
        load_schedule(path)
    path.write_text("{}")
    with raises(InvalidSchedule, names=("mine.json", "line 1", "version 1")):
        load_schedule(path)
    for name, value in (("placement", [["a"]]), ("actions", 3), ("num_steps", True), ("edges", [[1]]), ("name", None)):
        path.write_text(json.dumps(content | {name: value}))
        with raises(InvalidSchedule, names=("mine.json", name, repr(value))):
            load_schedule(path)
    path.write_text("{")
    with raises(InvalidSchedule, names=("mine.json", "line 1")):
        load_schedule(path)
    with raises(InvalidSchedule, names=("absent.json", NO_SUCH_FILE)):
        load_schedule(tmp_path / "absent.json")
    with raises(InvalidArgument, names=("mine.yaml", ".csv", ".json", ".txt")):
        load_schedule(tmp_path / "mine.yaml")
    with raises(InvalidArgument, names=("mine.json", NO_SUCH_FILE)):
        save_schedule(build("gpipe", 2, 2), tmp_path / "absent" / "mine.json")


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("0F0,1Q0\n", ("row 1", "column 2", "'1Q0'", "'Q'", "W")),
        ("0F0,\n,1F0,0B0\n", ("row 2", "0B0", "stage 0", "rank 0")),
        ("0F0\n2F0\n", "stage 1"),
        ("0F0-1\n", ("row 1", "column 1", "'0F0-1'", "2F0")),
        ("0F0,(0F1;0R0)OVERLAP_F_B\n", ("row 1", "column 2", "'(0F1;0R0)OVERLAP_F_B'")),
        ("0STEP\n", ("row 1", "column 1", "'0STEP'")),
        ("0SEND_F0>2\n1F0\n2F0\n", ("row 1", "column 1", "'0SEND_F0>2'")),
        ('"0F0\n', "table"),
    ],
)
def test_wrong_tables_are_named(table: str, names: str | tuple[str, ...]) -> None:
    with raises(InvalidSchedule, names=names):
        torch_csv.load(table)


@pytest.mark.parametrize("name", ["zb-h1", "zb-v"])
def test_older_tables_of_torch(name: str) -> None:
    """Older tables have B for the gradient of the inputs, and BW for the whole backward pass."""
    for schedule in (build(name, 4, 8), lower_messages(build(name, 4, 8))):
        older = torch_csv.dump(schedule).replace("I", "B")
        assert torch_csv.load(older) == schedule
    some_whole = torch_csv.load("0F0,0BW0,0F1,0B1,0W1\n")
    assert [str(action) for action in some_whole.actions[0]] == ["0F0", "0B0", "0F1", "0I1", "0W1"]
    assert torch_csv.load("0F0,0B0\n") == build("gpipe", 1, 1)


def test_schedules_that_torch_cannot_express() -> None:
    chain = build("1f1b", 2, 4)
    for schedule, names in (
        (concatenate(chain, 2), ("1f1b", "2")),
        (replace(build("1f1b", 3, 4), edges=((0, 1), (1, 2), (0, 2))), "1f1b"),
        (recompute(chain), ("rank 0", "action 2", "0R0", "F", "I")),
        (_wide(), ("rank 0", "action 0", "0F0-1")),
        (_overlapping(), ("rank 1", "action 2", "+1F1")),
    ):
        with raises(InvalidArgument, names=names):
            torch_csv.dump(schedule)


def _wide() -> PipelineSchedule:
    return text.load(HEAD + "rank 0: 0F0-1 0B0 0B1\nrank 1: 1F0-1 1B0 1B1\n")


def _overlapping() -> PipelineSchedule:
    return text.load(HEAD + "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 +1F1 1B1\n")
