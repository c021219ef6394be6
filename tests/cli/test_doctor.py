"""`hocket doctor`: its findings, each provoked if that is harmless."""

from __future__ import annotations

import itertools
import json
import os
import resource
from pathlib import Path

import pytest

from hocket.backends import declarations
from hocket.cli import _findings

from ..naming import assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(60)


def test_as_a_user_calls_it(tmp_path: Path) -> None:
    done = hocket(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for about in ("processors", "shared memory", "single copy", "open files", "gloo", "mpi", "left segments", "table"):
        assert about in done.stdout
    assert "PROBLEM" not in done.stdout
    data = json.loads(hocket(tmp_path, "doctor", "--json").stdout)
    assert data["has_problem"] is False and {each["state"] for each in data["findings"]} <= {"good", "note"}
    assert all(each["remedy"] for each in data["findings"] if each["state"] != "good")


def test_a_table_that_is_missing_is_not_to_be_removed(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    done = hocket(tmp_path, "doctor", table=table)
    lines = done.stdout.splitlines()
    ((line, remedy),) = [pair for pair in itertools.pairwise(lines) if "PROBLEM table" in pair[0]]
    assert_names(line, "HOCKET_TABLE", str(table))
    assert "unset HOCKET_TABLE" in remedy and "remove" not in remedy


def test_a_broken_table_is_a_problem(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text("no table")
    done = hocket(tmp_path, "doctor", table=table)
    assert done.returncode == 1
    assert "PROBLEM table" in done.stdout and "hocket tune run" in done.stdout


def _only(check: object, about: str) -> _findings.Finding:
    (finding,) = [each for each in check() if each.about == about]  # type: ignore[operator]
    return finding


def test_more_ranks_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "1000 ranks" in _only(_findings.check_processors, "processors").text
    assert "OMP_NUM_THREADS" in _only(_findings.check_processors, "threads").text


def test_single_copy_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SINGLE_COPY", "0")
    assert _only(declarations()["shm"].diagnose, "single copy").state == "note"


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    assert _only(_findings.check_limits, "open files").text == "at most 256 per process"


def test_torch_that_may_not_load_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert _only(_findings.check_torch, "torch backend").state == "problem"


def test_mpi_of_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("MPI4PY_LIBMPI", "/somewhere/libmpi.so.12")
    states = [each.state for each in declarations()["mpi"].diagnose()]
    assert "problem" in states


def test_segments_that_others_left() -> None:
    path = Path("/dev/shm") / f"mpich_shm_doctor_{os.getpid()}"
    path.write_bytes(bytes(1 << 20))
    try:
        finding = _only(_findings.check_left_segments, "left segments")
    finally:
        path.unlink()
    assert finding.state == "note" and "in /dev/shm" in finding.text
    assert path.name not in str(_only(_findings.check_left_segments, "left segments"))
