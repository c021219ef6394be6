"""`hocket explain` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.backends import declarations
from hocket.comm.policy import CHOOSABLE
from hocket.tune import Row, Table, save_table, this_machine

from ..naming import NO_SUCH_FILE, Given, assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(60)

TABLE = Table(
    this_machine({"shm": "shared memory", "mpi": "MPICH 5"}),
    (
        Row("all_reduce", "full", 2, 16, "shm", False, 1e-6, 1e-6, 1e-6),
        Row("all_reduce", "full", 2, 16, "mpi", False, 2.5e-6, 2.5e-6, 2.5e-6),
        Row("all_reduce", "full", 2, 1 << 20, "shm", False, 3e-3, 3e-3, 3e-3),
        Row("all_reduce", "full", 2, 1 << 20, "mpi", False, 1e-3, 1e-3, 1e-3),
        Row("all_reduce", "half", 2, 16, "mpi", False, 1e-6, 1e-6, 1e-6),
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_table(TABLE, tmp_path / "here.json")
    (tmp_path / "bad.json").write_text((tmp_path / "here.json").read_text()[:-20])
    return tmp_path


def test_without_a_table(folder: Path) -> None:
    done = hocket(folder, "explain", "all_reduce", "1MiB")
    assert (done.returncode, done.stderr) == (0, "")
    head, why, *candidates = done.stdout.splitlines()
    assert head == "all_reduce of 1 MiB float32 between 2 ranks: shm"
    assert why == "  why: a model decides, as no table was measured here"
    named = [line.split()[1] for line in candidates]
    assert [line.split()[0] for line in candidates] == [f"{place}." for place in range(1, len(candidates) + 1)]
    assert set(named) == {name for name, each in declarations().items() if not each.is_optional}
    assert [name for name in named if name in ("shm", "mpi", "gloo")] == ["shm", "mpi", "gloo"]
    assert all(line.endswith("(modelled)") for line in candidates)


def test_without_a_size_there_is_a_line_for_each_of_many(folder: Path) -> None:
    """At the table's crossover, between 16 B and 1 MiB, the named library changes."""
    done = hocket(folder, "explain", "all_reduce", "--table", "here.json", "--json")
    explanations = json.loads(done.stdout)["explanations"]
    assert (explanations[0]["nbytes"], explanations[-1]["nbytes"]) == (4, 64 << 20)
    chosen = [each["chosen"].partition(" ")[0] for each in explanations]
    assert chosen == sorted(chosen, reverse=True) and set(chosen) == {"shm", "mpi"}
    lines = hocket(folder, "explain", "all_reduce", "--table", "here.json").stdout.splitlines()
    assert [line.split()[2] for line in lines if line.split()[1] in ("B", "KiB", "MiB")] == chosen


def test_a_barrier_has_no_size(folder: Path) -> None:
    done = hocket(folder, "explain", "barrier")
    assert done.returncode == 0 and " B " not in done.stdout.splitlines()[0]


@pytest.mark.parametrize("op", CHOOSABLE)
def test_every_operation(folder: Path, op: str) -> None:
    done = hocket(folder, "explain", op, "0", "-n", "7", "--dtype", "bfloat16", "--table", "here.json", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    explained = json.loads(done.stdout)
    assert explained["chosen"] == explained["candidates"][0]["backend"]
    assert (explained["op"], explained["num_ranks"], explained["nbytes"]) == (op, 7, 0)


def test_a_schedule_is_named_whole(folder: Path) -> None:
    ring = Row("all_reduce", "full", 2, 1 << 20, "mpi", False, 1e-4, 1e-4, 1e-4, "ring")
    save_table(replace(TABLE, rows=(*TABLE.rows, ring)), folder / "ring.json")
    done = hocket(folder, "explain", "all_reduce", "1MiB", "--table", "ring.json")
    head, _, first, *_ = done.stdout.splitlines()
    assert head == "all_reduce of 1 MiB float32 between 2 ranks: mpi/ring"
    assert first.startswith("  1. mpi/ring 100 us")


@pytest.mark.parametrize("how", ["option", "variable", "user's"])
def test_with_a_table(folder: Path, how: str) -> None:
    path = folder / "here.json"
    if how == "user's":
        (folder / "cache" / "hocket").mkdir(parents=True)
        path = path.rename(folder / "cache" / "hocket" / "table.json")
    options = ["--table", str(path)] if how == "option" else []
    done = hocket(folder, "explain", "all_reduce", "16", *options, table=path if how == "variable" else None)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "all_reduce of 16 B float32 between 2 ranks: shm",
        f"  why: 2.50 times as fast as the second in {path}",
        "  1. shm 1 us [1 us, 1 us] (measured at 16 B)",
        "  2. mpi 2.5 us [2.5 us, 2.5 us] (measured at 16 B)",
    ]


@pytest.mark.parametrize(
    ("arguments", "chosen", "words"),
    [
        (["all_reduce", "2479"], "shm", "2.50 times as fast"),
        # where lines through the times at 16 B and 1 MiB cross on logarithmic scales: a share ln 2.5 / (ln 2.5 + ln 3)
        (["all_reduce", "2480"], "mpi", "3.00 times as fast"),
        (["all_reduce", "1GiB", "-n", "3"], "mpi", "measured between 2 ranks, there are no times for 3"),
        (["all_reduce", "16", "--dtype", "float16"], "mpi", "the fastest of those measured"),
        (["reduce", "16"], "shm", "has no reduce of that kind, a model decides"),
    ],
)
def test_json(folder: Path, arguments: list[str], chosen: str, words: str) -> None:
    done = hocket(folder, "explain", *arguments, "--table", "here.json", "--json")
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert set(explained) == {
        "op", "nbytes", "dtype", "num_ranks", "chosen", "reason", "candidates", "refused",
    }  # fmt: skip
    assert explained["chosen"] == chosen and words in explained["reason"]
    assert {each["backend"] for each in explained["candidates"]} == {"shm", "mpi"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["foo"], ["'foo'", "all_reduce"]),
        (["split"], ["'split'"]),
        ([], ["OPERATION", "hocket explain --help"]),
        (["all_reduce", "1x"], ["'1x'", "1MiB"]),
        (["all_reduce", "16", "17"], ["17"]),
        (["all_reduce", "--dtype", "float"], ["'float'", "float32"]),
        (["all_reduce", "-n", "0"], ["-n", "1", "0"]),
    ],
)
def test_bad_input_is_one_line_and_2(folder: Path, arguments: list[str], words: list[str]) -> None:
    done = hocket(folder, "explain", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert_names(done.stderr, "hocket explain", *words)


@pytest.mark.parametrize(
    ("name", "names"), [("bad.json", ("bad.json", "line")), ("absent.json", ("absent.json", NO_SUCH_FILE))]
)
def test_malformed_table_is_one_line(folder: Path, name: str, names: tuple[str, ...]) -> None:
    for done in (
        hocket(folder, "explain", "all_reduce", "--table", name),
        hocket(folder, "explain", "all_reduce", table=Path(name)),
    ):
        assert done.returncode != 0 and done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert_names(done.stderr, "hocket explain", *names)


@pytest.mark.parametrize("name", ["bad.json", "absent.json"])
def test_malformed_table_is_bad_input(folder: Path, name: str) -> None:
    assert hocket(folder, "explain", "all_reduce", "--table", name).returncode == 2


def test_table_of_another_machine(folder: Path) -> None:
    save_table(replace(TABLE, machine=replace(TABLE.machine, processor="another one")), folder / "here.json")
    done = hocket(folder, "explain", "all_reduce", "1MiB", table=folder / "here.json")  # init() uses the model
    assert "another machine" in done.stdout + done.stderr


@pytest.mark.parametrize("table", [True, False])
def test_what_is_not_installed_is_not_ranked(folder: Path, table: bool) -> None:
    program = """
import sys
sys.modules["mpi4py"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mpi4py" else find(name, *rest)
from hocket.cli._command import main
sys.argv = ["hocket", "explain", "all_reduce", "1MiB", *sys.argv[1:], "--json"]
main()
"""
    arguments = ["--table", str(folder / "here.json")] if table else []
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert all(each["backend"] != "mpi" for each in found["candidates"]) and found["chosen"] == "shm"
    assert_names(found["refused"]["mpi"], "mpi4py", Given("pip install 'hocket[mpi]'"))


def test_what_was_meant(folder: Path) -> None:
    done = hocket(folder, "explain", "allreduce", "1MiB")
    assert done.returncode == 2
    assert_names(done.stderr, "'allreduce'", "'all_reduce'")
