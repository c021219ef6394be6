"""The file that a rank writes when one of its communicators fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hocket.errors import Aborted, CommTimeout
from hocket.trace import Record, write_failure_record


def make_record(seq: int) -> Record:
    return Record("all_reduce", seq, 16, "float32", "sum", None, 0, "shm", "completed", False, 1000 * seq, 1e-6)


def write(folder: Path, error: Exception, num_records: int = 2) -> Path:
    records = [make_record(seq) for seq in range(1, num_records + 1)]
    return write_failure_record(folder, rank=3, size=4, communicator="world", error=error, records=records)


def test_content(tmp_path: Path) -> None:
    path = write(tmp_path / "made" / "on demand", CommTimeout("rank 1 never came", (1, 2)))
    assert path == tmp_path / "made" / "on demand" / "rank-3.json"
    content = json.loads(path.read_text())
    assert (content["format"], content["rank"], content["size"]) == ("hocket-failure-1", 3, 4)
    assert (content["pid"], content["communicator"]) == (os.getpid(), "world")
    assert content["error"] == {"type": "CommTimeout", "message": "rank 1 never came", "ranks": [1, 2]}
    assert [Record(**record) for record in content["records"]] == [make_record(1), make_record(2)]


def test_error_without_ranks(tmp_path: Path) -> None:
    assert json.loads(write(tmp_path, Aborted("given up")).read_text())["error"]["ranks"] == []


def test_the_last_records_are_kept(tmp_path: Path) -> None:
    records = json.loads(write(tmp_path, Aborted("given up"), 2000).read_text())["records"]
    assert [record["seq"] for record in records] == list(range(2000 - 512 + 1, 2001))


def test_a_later_one_replaces_and_nothing_else_is_left(tmp_path: Path) -> None:
    write(tmp_path, Aborted("first"))
    path = write(tmp_path, Aborted("second"))
    assert os.listdir(tmp_path) == [path.name]
    assert json.loads(path.read_text())["error"]["message"] == "second"


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "records", Aborted("given up"))
