"""`hocket run` as a user calls it: arguments, messages, exit codes, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .. import program
from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def hocket(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return program.hocket(*arguments, folder=folder, environment={**os.environ, "COLUMNS": "100"}, timeout_s=40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(
        "import os, sys\nos.write(1, f\"{os.environ['RANK']} {sys.argv[1:]}\\n\".encode())\n"
    )
    (tmp_path / "fails.py").write_text("import os\nif os.environ['RANK'] == '1': raise ValueError('bad')\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["train.py", "--help", "-n", "7", "--json"], ["--help", "-n", "7", "--json"]),
        (["--", "train.py", "-x"], ["-x"]),
        (["train.py", "--", "-x", "--"], ["--", "-x", "--"]),
        (["-m", "train", "-m", "x"], ["-m", "x"]),
        (["--", "train.py"], []),
    ],
)
def test_arguments_of_the_script_are_its_own(folder: Path, arguments: list[str], seen: list[str]) -> None:
    done = hocket(folder, "run", "-n", "2", *arguments)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"0 {seen}", f"1 {seen}"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "-n", "0", "train.py"], ["-n", "1", "0"]),
        (["run", "-n", "-3", "train.py"], ["-n", "1", "-3"]),
        (["run", "-n", "two", "train.py"], ["-n 2", "two"]),
        (["run", "--np=two", "train.py", "-n", "zz"], ["--np 2", "two"]),
        (["run", "-n", "2"], ["SCRIPT", "hocket run --help"]),
        (["run", "train.py"], ["-n", "hocket run --help"]),
        (["run", "-n", "2", "absent.py"], ["'absent.py'"]),
        (["run", "-n", "2", "train"], ["'train'", "train.py"]),
        (["run", "-n", "2", "package.train"], ["'package.train'", "-m"]),
        (["run", "-n", "2", "empty"], ["'empty'", "__main__.py"]),
        (["run", "-n", "2", "-m", "absent_module"], ["'absent_module'"]),
        (["run", "-n", "2", "-m", ".train"], ["'.train'"]),
        (["run", "-n", "2", "-m", "train.py"], ["-m", "-m train"]),
        (["run", "-n", "2", "--nonsense", "train.py"], ["--nonsense"]),
        (["nonsense"], ["nonsense", "hocket --help"]),
    ],
)
def test_bad_input_is_one_line_and_2(folder: Path, arguments: list[str], names: list[str]) -> None:
    done = hocket(folder, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hocket")
    assert_names(done.stderr, *names)


def test_failure_and_json(folder: Path) -> None:
    done = hocket(folder, "run", "-n", "2", "--json", "fails.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == "Traceback (most recent call last):"
    assert_names(done.stderr.splitlines()[0], "rank 1")
    assert done.stderr.endswith("ValueError: bad\n")
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["num_ranks"], result["first_failed_rank"]) == (1, 2, 1)
    assert [rank["exit_code"] for rank in result["ranks"]] == [0, 1]
    assert all(rank["signal"] is None and rank["duration_s"] > 0 for rank in result["ranks"])


def test_json_after_success(folder: Path) -> None:
    done = hocket(folder, "run", "-n", "1", "--tag-output", "--json", "train.py")
    first, last = done.stdout.splitlines()
    assert first == "[0] 0 []"
    assert json.loads(last)["first_failed_rank"] is None


def test_fault_of_the_launcher_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No folder for temporary files: neither bad input nor a reason for a traceback.
    monkeypatch.setattr("tempfile.tempdir", None)
    program = "import tempfile; tempfile.tempdir = '/no/such/folder'; from hocket.cli._command import main; main()"
    command = [sys.executable, "-c", program, "run", "-n", "1", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert_names(done.stderr, "hocket run", "FileNotFoundError")
    assert done.stderr.count("\n") == 1
