"""`hocket tune` as a user calls it: measure, look, check, export."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.comm.policy import LARGEST_NBYTES, Range, format_seconds
from hocket.tune import Machine, Row, Table, load_table, save_table

from ..load import BusyProcesses
from ..naming import NO_SUCH_FILE, assert_names
from ..tier import full
from .command import hocket

pytestmark = pytest.mark.timeout(90)

MACHINE = Machine("a processor", 2, 1, {"shm": "shared memory", "mpi": "MPICH 5"})
TABLE = Table(
    MACHINE,
    (
        Row("all_reduce", "full", 2, 16, "shm", False, 1e-6, 9e-7, 1.1e-6),
        Row("all_reduce", "full", 2, 16, "mpi", False, 2.5e-6, 2e-6, 3e-6),
        Row("all_reduce", "half", 2, 16, "shm", False, 3e-6, 3e-6, 3e-6),
        Row("all_reduce", "full", 2, 16, "mpi", True, 5e-6, 5e-6, 5e-6),
        Row("barrier", "moved", 4, 0, "mpi", False, 0.125, 0.1, 0.2),
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_table(TABLE, tmp_path / "here.json")
    text = (tmp_path / "here.json").read_text()
    (tmp_path / "bad.json").write_text(text.replace('"seconds": 2.5e-06', '"seconds": -1'))
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("measured")
    options = ["--ops", "all_reduce", "--sizes", "16,4KiB", "--rounds", "6"]
    options.append("--beside-others")  # such as other tests
    return folder, hocket(folder, "tune", "run", "-n", "2", *options, "-o", "new/table.json", "--json")


def test_run(measured: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = measured
    assert done.returncode == 0, done.stderr
    table = load_table(folder / "new" / "table.json")
    assert json.loads(done.stdout) == {"path": "new/table.json", "rows": len(table.rows), "hash": table.hash}
    assert {"shm", "mpi"} <= set(table.machine.backends)
    cells = {(row.op, row.dtypes, row.num_ranks, row.nbytes, row.backend) for row in table.rows if not row.busy}
    assert cells == {
        ("all_reduce", dtypes, 2, nbytes, backend)
        for dtypes in ("full", "half")
        for nbytes in (16, 4096)
        for backend in table.machine.backends
    }
    assert all(0 < row.low <= row.seconds <= row.high for row in table.rows)
    assert {row.nbytes for row in table.rows if row.busy} == {4096}
    assert [each.name for each in folder.rglob("*") if each.is_file()] == ["table.json"]


def test_what_run_wrote_is_good(measured: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ran = measured
    shown = hocket(folder, "tune", "show", "new/table.json")
    assert shown.returncode == 0 and shown.stdout.count("all_reduce") == 4, shown.stderr
    checked = hocket(folder, "tune", "check", "new/table.json", "--points", "0")
    assert checked.returncode == int(not load_table(folder / "new" / "table.json").is_judged)
    assert json.loads(ran.stdout)["hash"] in checked.stdout
    exported = hocket(folder, "tune", "export", "new/table.json")
    assert len(list(csv.DictReader(io.StringIO(exported.stdout)))) == json.loads(ran.stdout)["rows"]


def test_a_busy_machine(folder: Path) -> None:
    """What was measured beside foreign work is not written over what is there, and where it is, a check tells."""
    before = (folder / "here.json").read_bytes()
    options = ["--ops", "all_reduce", "--sizes", "16", "--rounds", "6", "-o", "here.json"]
    with closing(BusyProcesses(2 * len(os.sched_getaffinity(0)))):
        done = hocket(folder, "tune", "run", "-n", "2", *options)
        assert done.returncode == 3 and done.stdout == ""
        assert_names(done.stderr, "25%", "--beside-others")
        assert (folder / "here.json").read_bytes() == before
        done = hocket(folder, "tune", "run", "-n", "2", *options, "--beside-others")
        assert done.returncode == 0, done.stderr
    assert 0.25 < load_table(folder / "here.json").foreign_busy <= 1
    checked = hocket(folder, "tune", "check", "here.json", "--points", "0")
    assert checked.returncode == 1 and "NOISE" in checked.stdout
    checked = hocket(folder, "tune", "check", "here.json", "--points", "0", "--json")
    assert checked.returncode == 1 and json.loads(checked.stdout)["judged"] is False


def test_merge_into_the_users_table(tmp_path: Path, measured: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    machine = load_table(measured[0] / "new" / "table.json").machine
    kept = Row("all_to_all", "moved", 2, 64, "mpi", False, 1e-6, 1e-6, 1e-6)
    again = Row("barrier", "moved", 2, 0, "shm", False, 123.0, 123.0, 123.0)
    path = tmp_path / "cache" / "hocket" / "table.json"
    save_table(Table(machine, (kept, again)), path)
    options = ["--ops", "barrier", "--sizes", "16", "--rounds", "6", "--backends", "shm,mpi", "--merge"]
    done = hocket(tmp_path, "tune", "run", "-n", "2", "--beside-others", *options)
    assert done.returncode == 0, done.stderr
    assert f"{path}: 3 rows, for 2 ranks, hash {load_table(path).hash}" in done.stdout
    assert_names(done.stderr, "gloo")
    rows = {(row.op, row.backend): row for row in load_table(path).rows}
    assert set(rows) == {("all_to_all", "mpi"), ("barrier", "shm"), ("barrier", "mpi")}
    assert rows["all_to_all", "mpi"] == kept
    assert rows["barrier", "shm"].seconds < 1


@full
def test_merge_does_not_mix_machines(folder: Path) -> None:
    options = ["--ops", "barrier", "--rounds", "6", "--backends", "shm", "--merge", "-o", "here.json"]
    done = hocket(folder, "tune", "run", "-n", "2", "--beside-others", *options)
    table = load_table(folder / "here.json")
    if done.returncode == 0:  # the new rows alone
        assert {row.op for row in table.rows} == {"barrier"} and len(table.rows) == 1
    else:  # or a refusal, and the table as it was
        assert table.hash == TABLE.hash


def test_show(folder: Path) -> None:
    done = hocket(folder, "tune", "show", "here.json")
    assert done.returncode == 0 and done.stderr == ""
    title, *lines = done.stdout.splitlines()
    assert title.strip() == "here.json: a processor, 2 CPUs"
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]
    head, *body = (each for each in cells if each)
    assert head == ["operation", "ranks", "size", "shm", "mpi", "fastest by"]
    assert sorted(body) == [
        ["all_reduce", "2", "16 B", "1 us", "2.5 us", "2.50"],
        ["all_reduce (half)", "2", "16 B", "3 us", "-", ""],
        ["barrier", "4", "0 B", "-", "125 ms", ""],
    ]


def test_show_tells_no_gain_where_intervals_overlap(folder: Path) -> None:
    rows = (TABLE.rows[0], replace(TABLE.rows[1], low=1.05e-6))
    save_table(replace(TABLE, rows=rows), folder / "here.json")
    shown = hocket(folder, "tune", "show", "here.json").stdout
    assert "not clear" in shown and "2.50" not in shown


def test_show_of_some_ranks(folder: Path) -> None:
    done = hocket(folder, "tune", "show", "here.json", "-n", "4")
    assert "barrier" in done.stdout and "all_reduce" not in done.stdout
    cells = json.loads(hocket(folder, "tune", "show", "here.json", "-n", "4", "--json").stdout)["cells"]
    assert [each["op"] for each in cells] == ["barrier"]
    wrong = hocket(folder, "tune", "show", "here.json", "-n", "7")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert_names(wrong.stderr, "-n 7", "here.json", "2, 4")


def test_show_json(folder: Path) -> None:
    done = hocket(folder, "tune", "show", "here.json", "--json")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert {name: shown[name] for name in ("path", "hash", "machine")} == {
        "path": "here.json", "hash": TABLE.hash, "machine": MACHINE.to_json(),
    }  # fmt: skip
    assert len(shown["cells"]) == 3
    assert {
        "op": "all_reduce", "dtypes": "full", "num_ranks": 2, "nbytes": 16, "seconds": {"shm": 1e-6, "mpi": 2.5e-6},
        "learned": [],
    } in shown["cells"]  # fmt: skip


def test_show_what_was_learned(folder: Path) -> None:
    seen = replace(TABLE.rows[0], source="run")
    ranges = [Range(1023, ("shm", "mpi"), "learned while running: faster"), Range(LARGEST_NBYTES, ("mpi",))]
    key = seen.op, seen.dtypes, seen.num_ranks
    save_table(replace(TABLE, rows=(seen, *TABLE.rows[1:])).with_ranges(key, ranges), folder / "learned.json")
    done = hocket(folder, "tune", "show", "learned.json")
    assert f"{format_seconds(seen.seconds)}*" in done.stdout and "* seen while a program ran" in done.stdout
    line = f"{seen.op} ({seen.dtypes}, {seen.num_ranks} ranks) up to 1023 B: shm, learned while running: faster"
    assert done.stdout.splitlines()[-1] == line
    shown = json.loads(hocket(folder, "tune", "show", "learned.json", "--json").stdout)
    assert [each["ranking"] for each in shown["rules"]] == [["shm", "mpi"], ["mpi"]]
    assert [each["learned"] for each in shown["cells"]].count([seen.backend]) == 1


def test_row_of_a_backend_that_the_machine_has_not(folder: Path) -> None:
    save_table(Table(replace(MACHINE, backends={"shm": "shared memory"}), TABLE.rows), folder / "here.json")
    checked = hocket(folder, "tune", "check", "here.json", "--points", "0")
    shown = hocket(folder, "tune", "show", "here.json")
    assert checked.returncode == shown.returncode
    assert "ValueError" not in shown.stderr


def test_check(folder: Path) -> None:
    done = hocket(folder, "tune", "check", "here.json", "--points", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"here.json: 5 rows, for 2 and 4 ranks, hash {TABLE.hash}, of a processor with 2 CPUs",
        "  shm: shared memory",
        "  mpi: MPICH 5",
    ]
    done = hocket(folder, "tune", "check", "here.json", "--json", "--points", "0")
    expected = {"path": "here.json", "rows": 5, "hash": TABLE.hash, **MACHINE.to_json(), "judged": True, "points": []}
    assert json.loads(done.stdout) == expected


def test_the_users_table_is_the_default(folder: Path) -> None:
    (folder / "cache" / "hocket").mkdir(parents=True)
    (folder / "here.json").rename(folder / "cache" / "hocket" / "table.json")
    for verb in (["show"], ["check", "--points", "0"]):
        assert json.loads(hocket(folder, "tune", *verb, "--json").stdout)["hash"] == TABLE.hash


def test_export(folder: Path) -> None:
    done = hocket(folder, "tune", "export", "here.json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 5
    assert rows[3] == {
        "op": "all_reduce", "dtypes": "full", "num_ranks": "2", "nbytes": "16", "backend": "mpi", "busy": "True",
        "seconds": "5e-06", "low": "5e-06", "high": "5e-06", "algorithm": "", "source": "sweep",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-n", "1"], ["-n", "2", "1"]),
        (["run", "-n", "two"], ["-n 2", "two"]),
        (["run", "--ops", "all_reduce,foo"], ["'foo'", "all_to_all"]),
        (["run", "--ops", "all_reduce,"], ["''"]),
        (["run", "--sizes", "16,1.5MiB"], ["'1.5MiB'", "64KiB"]),
        (["run", "--sizes", "16,18"], ["sizes", "4", "18"]),
        (["run", "--sizes", "0"], ["sizes", "4", "[0]"]),
        (["run", "--rounds", "5"], ["rounds", "6", "5"]),
        (["run", "--nonsense"], ["--nonsense"]),
        (["sing"], ["sing", "hocket tune --help"]),
    ],
)
def test_bad_input_is_one_line_and_2(folder: Path, arguments: list[str], words: list[str]) -> None:
    check_complaint(hocket(folder, "tune", *arguments), words)


def check_complaint(done: subprocess.CompletedProcess[str], words: Sequence[str], exit_code: int = 2) -> None:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("hocket"), done.stderr
    assert_names(done.stderr, *words)
    assert done.returncode == exit_code


@pytest.mark.parametrize("verb", ["show", "check", "export"])
def test_malformed_table_is_one_line(folder: Path, verb: str) -> None:
    line = (folder / "bad.json").read_text().splitlines().index(
        next(each for each in (folder / "bad.json").read_text().splitlines() if '"seconds": -1' in each)
    ) + 1  # fmt: skip
    for name, names in (
        ("bad.json", ("bad.json", f"line {line}", "seconds", "-1")),
        ("absent.json", ("absent.json", NO_SUCH_FILE)),
    ):
        done = hocket(folder, "tune", verb, name)
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1, done.stderr
        assert_names(done.stderr, "hocket tune", *names)


@pytest.mark.parametrize("name", ["bad.json", "absent.json"])
@pytest.mark.parametrize("verb", ["show", "check", "export"])
def test_malformed_table_is_bad_input(folder: Path, verb: str, name: str) -> None:
    check_complaint(hocket(folder, "tune", verb, name), [f"{name}"])


def test_unknown_backend_is_bad_input(folder: Path) -> None:
    check_complaint(
        hocket(folder, "tune", "run", "-n", "2", "--backends", "shm,sharp"), ["'sharp'", "shm", "gloo", "mpi"]
    )


def test_backend_that_cannot_be_had_is_bad_input(folder: Path) -> None:
    words = ["'mpi:openmpi'", "mpirun -n 2"]
    check_complaint(hocket(folder, "tune", "run", "-n", "2", "--backends", "shm,mpi:openmpi"), words)


def test_output_that_cannot_be_written_is_bad_input(folder: Path) -> None:
    options = ["--ops", "barrier", "--rounds", "6", "--backends", "shm"]
    check_complaint(hocket(folder, "tune", "run", "-n", "2", *options, "-o", str(folder)), [str(folder)])


def test_merge_into_a_malformed_table_is_bad_input(folder: Path) -> None:
    options = ["--ops", "barrier", "--rounds", "6", "--backends", "shm", "--merge"]
    check_complaint(hocket(folder, "tune", "run", "-n", "2", *options, "-o", "bad.json"), ["bad.json", "seconds", "-1"])


def test_help_has_examples(folder: Path) -> None:
    done = hocket(folder, "tune", "run", "--help")
    assert done.returncode == 0 and "  hocket tune run -n 4 --backends shm,mpi --merge\n" in done.stdout
    done = hocket(folder, "tune")
    assert done.returncode == 2 and all(f"  {verb} " in done.stderr for verb in ("run", "show", "check", "export"))


def save_wrong(path: Path, sizes: Sequence[int], shm_s: float) -> None:
    """Write a table that says that shared memory takes longer than gloo."""
    rows = [
        Row("broadcast", "moved", 2, nbytes, backend, False, seconds, seconds, seconds)
        for nbytes in sizes
        for backend, seconds in (("gloo", 1e-6), ("shm", shm_s))
    ]
    machine = replace(MACHINE, backends={"shm": "shared memory", "gloo": "gloo"})
    save_table(Table(machine, tuple(rows)), path)


@full
@pytest.mark.timeout(120)
def test_check_times_choices_again(folder: Path) -> None:
    """A table that prefers gloo where shared memory takes a hundredth of its time is found out."""
    save_wrong(folder / "wrong.json", (1 << 12, 1 << 16), shm_s=2e-6)
    done = hocket(folder, "tune", "check", "wrong.json", "--points", "2", "--seed", "3", "--json")
    assert done.returncode == 1, done.stderr
    points = json.loads(done.stdout)["points"]
    assert points
    for point in points:
        assert (point["op"], point["chosen"], point["best"], point["holds"]) == ("broadcast", "gloo", "shm", False)
        assert point["ratio"] >= point["low"] > 1.2
        assert point["num_others"] >= 1
    assert "SLOW broadcast moved" in hocket(folder, "tune", "check", "wrong.json", "--points", "1").stdout
    done = hocket(folder, "tune", "check", "wrong.json", "--points", "-1")
    assert done.returncode == 2
    assert_names(done.stderr, "--points", "0", "-1")


@pytest.mark.timeout(120)
def test_check_does_not_take_the_table_at_its_word(folder: Path) -> None:
    """What a table says is a thousand times as slow is timed all the same: the times are what is checked."""
    save_wrong(folder / "wrong.json", (1 << 12,), shm_s=1e-3)
    done = hocket(folder, "tune", "check", "wrong.json", "--points", "1", "--seed", "3", "--json")
    assert done.returncode == 1, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert (point["chosen"], point["best"], point["num_others"], point["holds"]) == ("gloo", "shm", 1, False)
