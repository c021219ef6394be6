"""The table's file: what is written comes back, and what is no table is refused by name and line."""

from __future__ import annotations

import copy
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import TableError
from hocket.tune import Machine, Table, load_table, save_table

from ..naming import IS_A_DIRECTORY, NO_SUCH_FILE, raises
from .tables import MACHINE, row, table

pytestmark = pytest.mark.timeout(60)

TABLE = table(
    row("barrier", "shm", 0, 1.25e-7),
    row("all_reduce", "shm", 16, 5e-7, noise=0.1),
    row("all_reduce", "mpi", 16, 1e-6, busy=True),
    row("all_reduce", "mpi", 1 << 40, 3, dtype="bfloat16", num_ranks=64),
    row("send", "gloo", 4096, 1 / 3),
)
BAD_ROW = 2  # the one that a test spoils


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.mark.parametrize("given", [TABLE, table(), table(TABLE.rows[0])], ids=["rows", "no row", "one row"])
def test_round_trip(given: Table, path: Path) -> None:
    save_table(given, path)
    loaded = load_table(path)
    assert loaded == replace(given, path=str(path))
    assert loaded.hash == given.hash


def test_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "table.json"
    save_table(TABLE, path)
    assert load_table(str(path)).rows == TABLE.rows


def test_a_row_is_a_line(path: Path) -> None:
    save_table(TABLE, path)
    rows = [json.loads(line.rstrip(",")) for line in path.read_text().splitlines() if '"op"' in line]
    assert [each["nbytes"] for each in rows] == [each.nbytes for each in TABLE.rows]


def test_hash_does_not_depend_on_the_order_of_rows(path: Path) -> None:
    rows = list(TABLE.rows)
    for seed in range(10):
        random.Random(seed).shuffle(rows)
        assert table(*rows).hash == TABLE.hash


def test_hash_changes_with_every_fact() -> None:
    first, *rest = TABLE.rows
    rows = [
        replace(first, **{name: value})
        for name, value in {
            "op": "send", "dtypes": "full", "num_ranks": 3, "nbytes": 1, "backend": "mpi", "busy": True, "seconds": 1.0,
            "low": 1e-9, "high": 1.0,
        }.items()
    ]  # fmt: skip
    machines = [
        replace(MACHINE, **{name: value})
        for name, value in {"processor": "other", "num_cpus": 3, "num_hosts": 2, "backends": {"shm": "other"}}.items()
    ]
    tables = [TABLE, table(*rest), *(table(each, *rest) for each in rows), *(Table(m, TABLE.rows) for m in machines)]
    assert len({each.hash for each in tables}) == len(tables)
    assert replace(TABLE, path="elsewhere").hash == TABLE.hash


def test_merged() -> None:
    newer = replace(TABLE.rows[1], seconds=9e-7, low=9e-7, high=9e-7)
    added = row("all_to_all", "mpi", 64, 1e-6)
    machine = replace(MACHINE, backends={**MACHINE.backends, "ucx": "UCX 1"})
    merged = TABLE.merged(Table(machine, (newer, added), "new.json"))
    assert sorted(map(str, merged.rows)) == sorted(map(str, (TABLE.rows[0], newer, *TABLE.rows[2:], added)))
    assert (merged.machine, merged.path) == (machine, "new.json")
    assert TABLE.merged(TABLE).hash == TABLE.hash


def _as_saved(content: dict[str, Any], path: Path) -> str:
    head, rows = {k: v for k, v in content.items() if k != "rows"}, content["rows"]
    save_table(replace(TABLE, rows=()), path)
    assert json.loads(path.read_text()) == {**head, "rows": []}
    return path.read_text().replace(
        '"rows": [\n\n', '"rows": [\n' + ",\n".join(f"  {json.dumps(each)}" for each in rows) + "\n"
    )


LAYOUTS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "as saved": _as_saved,
    "indented": lambda content, path: json.dumps(content, indent=4),
    "one line": lambda content, path: json.dumps(content),
    "one line, rows first": lambda content, path: json.dumps({"rows": content["rows"], **content}),
    "no spaces": lambda content, path: json.dumps(content, indent=0, separators=(",", ":")),
}


def _content(path: Path) -> dict[str, Any]:
    save_table(TABLE, path)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _line_of_row(text: str, number: int) -> int:
    """Found by what only this row says, not by parsing: the brace before its op."""
    position = -1
    for _ in range(number + 1):
        position = text.index('"op"', position + 1)
    return text.count("\n", 0, text.rindex("{", 0, position)) + 1


BAD_VALUES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("op", "all_reduction", ("barrier", "all_reduce")),
    ("op", "split", ("barrier", "all_reduce")),
    ("op", ["all_reduce"], ("barrier", "all_reduce")),
    ("dtypes", "float32", ("moved", "half", "full")),
    ("num_ranks", 0, ("1",)),
    ("num_ranks", True, ("1",)),
    ("num_ranks", 2.0, ("1",)),
    ("nbytes", -1, ("0",)),
    ("nbytes", False, ("0",)),
    ("nbytes", "16", ("0",)),
    ("backend", 3, ()),
    ("busy", 1, ()),
    ("busy", None, ()),
    ("seconds", 0, ()),
    ("seconds", -1e-6, ()),
    ("seconds", float("nan"), ()),
    ("seconds", float("inf"), ()),
    ("seconds", True, ()),
    ("seconds", "1e-6", ()),
    ("low", -1.0, ()),
    ("high", None, ()),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "value", "right"), BAD_VALUES, ids=[f"{n} {v!r}" for n, v, _ in BAD_VALUES])
def test_bad_value(path: Path, layout: str, name: str, value: Any, right: tuple[str, ...]) -> None:
    content = _content(path)
    content["rows"][BAD_ROW][name] = value
    text = LAYOUTS[layout](content, path)
    path.write_text(text)
    line = f"line {_line_of_row(text, BAD_ROW)}"
    with raises(TableError, names=(str(path), line, name, repr(value), *right)) as raised:
        load_table(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spoil", ["missing", "unknown", "list"])
def test_bad_row(path: Path, layout: str, spoil: str) -> None:
    content = _content(path)
    bad = content["rows"][BAD_ROW]
    if spoil == "missing":
        del bad["busy"]
    elif spoil == "unknown":
        bad["colour"] = "red"
    else:
        content["rows"][BAD_ROW] = [bad]  # the line that is asked for is the same one, but where indented
    text = LAYOUTS[layout](content, path)
    path.write_text(text)
    line = _line_of_row(text, BAD_ROW)
    if spoil == "list" and layout in ("indented", "no spaces"):
        line -= 1
    with raises(TableError, names=(str(path), f"line {line}", "algorithm", "backend", "busy", "dtypes")):
        load_table(path)


@pytest.mark.parametrize("number", range(len(TABLE.rows)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_line_of_any_row(path: Path, layout: str, number: int) -> None:
    content = _content(path)
    content["rows"][number]["seconds"] = -1
    text = LAYOUTS[layout](content, path)
    path.write_text(text)
    with raises(TableError, names=(str(path), f"line {_line_of_row(text, number)}", "seconds", "-1")):
        load_table(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ("line 1",)),
        ("hello", ("line 1",)),
        ('{"format":\n\nnone}', ("line 3",)),
        ("{}", ("line 1", "version 2", '"format"')),
        ("[]", ("line 1", "version 2", "list")),
        ("null", ("line 1", "version 2", "null")),
        (
            '{"format": "hocket tuning table, version 3", "machine": {}, "rows": []}',
            ("line 1", "version 3", "2"),
        ),
    ],
)
def test_no_table(path: Path, text: str, names: tuple[str, ...]) -> None:
    path.write_text(text)
    with raises(TableError, names=(str(path), *names)):
        load_table(path)


def test_truncated_anywhere(path: Path) -> None:
    save_table(table(*TABLE.rows[:2]), path)
    text = path.read_text()
    for end in range(len(text.rstrip())):
        path.write_text(text[:end])
        with pytest.raises(TableError) as raised:
            load_table(path)
        line = int(str(raised.value).removeprefix(f"{path}, line ").partition(":")[0])
        # Where an item begins and does not go on, the parser names the place it begins at.
        assert text[:end].rstrip().count("\n") <= line <= text.count("\n", 0, end) + 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("machine", None), ("machine", "a processor"), ("machine", {}),
        ("machine", {"processor": "a", "num_cpus": 2, "num_hosts": 1}),
        ("machine", {**MACHINE.to_json(), "colour": "red"}),
        ("rows", {}), ("rows", None), ("rows", "[]"),
    ],
)  # fmt: skip
def test_bad_head(path: Path, name: str, value: Any) -> None:
    content = _content(path)
    content[name] = value
    path.write_text(json.dumps(content))
    fields = ("backends", "num_cpus", "num_hosts", "processor", repr(value)) if name == "machine" else ()
    with raises(TableError, names=(str(path), name, *fields)):
        load_table(path)


@pytest.mark.parametrize("name", ["machine", "rows"])
def test_missing_part(path: Path, name: str) -> None:
    content = _content(path)
    del content[name]
    path.write_text(json.dumps(content))
    with raises(TableError, names=(str(path), name)):
        load_table(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("processor", 3), ("num_cpus", "2"), ("num_hosts", None), ("backends", ["shm"]), ("backends", {"shm": 5})],
)
def test_bad_machine(path: Path, name: str, value: Any) -> None:
    content = _content(path)
    content["machine"][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(TableError):
        load_table(path)


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"format": {"1" * 5000}}}'], ids=["deep", "long number"])
def test_what_the_parser_refuses_otherwise(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(TableError):
        load_table(path)


def test_equal_hash_means_equal_cells(path: Path) -> None:
    twice = TABLE.rows[1], replace(TABLE.rows[1], seconds=9e-7, low=9e-7, high=9e-7)
    tables = []
    for rows in (twice, twice[::-1]):
        save_table(table(*rows), path)
        try:
            tables.append(load_table(path))
        except TableError:
            return
    assert tables[0].hash != tables[1].hash or tables[0].cells == tables[1].cells


def _places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [place, *(found for key, value in inner for found in _places(value, (*place, key)))]


@pytest.mark.parametrize("version", [1, 2])
def test_any_value_in_any_place_is_read_or_refused(path: Path, version: int) -> None:
    save_table(table(TABLE.rows[1]), path)
    content = json.loads(path.read_text()) | {"format": f"hocket tuning table, version {version}"}
    if version == 1:
        content["rows"] = [
            {key: each[key] for key in each.keys() - {"algorithm", "source"}} for each in content["rows"]
        ]
    places = [place for place in _places(content) if place]
    assert len(places) > 12
    for place in places:
        for value in (None, 5, -1, 1e308, "", "x", [], {}, [5], [[]], {"a": 1}, True, 2**70, "\ud800"):
            spoilt = copy.deepcopy(content)
            holder = spoilt
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            path.write_text(json.dumps(spoilt))
            message = ""
            try:
                load_table(path)
            except TableError as error:
                message = str(error)
            assert message == "" or (str(path) in message and "\n" not in message)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with raises(TableError, names=("absent.json", NO_SUCH_FILE)):
        load_table(tmp_path / "absent.json")
    with raises(TableError, names=(str(tmp_path), IS_A_DIRECTORY)):
        load_table(tmp_path)
    (tmp_path / "picture").write_bytes(b"\xff\xd8\xff")
    with raises(TableError, names=str(tmp_path / "picture")):
        load_table(tmp_path / "picture")


def test_existing_file_is_replaced_whole(path: Path) -> None:
    save_table(TABLE, path)
    with path.open() as reader:  # one who opened the old file reads the old file
        save_table(table(TABLE.rows[0]), path)
        assert len(json.load(reader)["rows"]) == len(TABLE.rows)
    assert load_table(path).rows == TABLE.rows[:1]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


_KILLED = """
import os, signal, sys
from pathlib import Path
from hocket.tune import load_table, save_table
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
Path.replace = Path.rename = os.replace = os.rename = die
save_table(load_table(sys.argv[1]), sys.argv[2])
"""


def test_killed_writer_leaves_the_old_file(path: Path) -> None:
    other = path.with_name("other.json")
    save_table(TABLE, path)
    save_table(table(), other)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(other), str(path)], timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert load_table(path).rows == TABLE.rows
    save_table(table(), path)  # and nobody minds what it left
    assert load_table(path).rows == ()


def test_failed_writer_leaves_nothing(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        save_table(TABLE, path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_cells_are_in_order_of_size() -> None:
    rows = [row("send", backend, nbytes, 1e-6) for nbytes in (4096, 16, 256) for backend in ("mpi", "shm")]
    cells = table(*rows, row("send", "shm", 1, 1e-6, busy=True)).cells
    assert list(cells["send", "moved", 2, False]) == [16, 256, 4096]
    assert set(cells["send", "moved", 2, False][16]) == {"mpi", "shm"}
    assert list(cells["send", "moved", 2, True]) == [1]


def test_machine_comes_back_as_it_was(path: Path) -> None:
    machine = Machine('quotes " and [brackets], "rows": [', 1, 1, {**MACHINE.backends, "shm": "ü"})
    save_table(Table(machine, TABLE.rows), path)
    assert load_table(path).machine == machine
