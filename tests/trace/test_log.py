"""HOCKET_LOG."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hocket as hk

from ..naming import NO_SUCH_FILE, raises

pytestmark = pytest.mark.timeout(60)
PROGRAM = """
import hocket as hk
comm = hk.init()
comm.dup().finalize()
comm.finalize()
hk.init().finalize()
"""


def _run(value: str | None, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin"} | ({} if value is None else {"HOCKET_LOG": value})
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, env=environment, cwd=folder
    )


def test_nothing_is_said_unasked(tmp_path: Path) -> None:
    job = _run(None, tmp_path)
    assert (job.returncode, job.stdout, job.stderr) == (0, "", "")


def test_info_on_standard_error(tmp_path: Path) -> None:
    said = _run("info", tmp_path).stderr.splitlines()
    assert sum("hocket rank 0 INFO: world of 1 ranks" in line for line in said) == 2  # once for each world
    assert any("backend shm: shared memory" in line for line in said)
    assert any("backend mpi is left out: one rank alone needs no library" in line for line in said)
    assert not any("DEBUG" in line for line in said)


def test_debug_into_a_file_of_the_rank(tmp_path: Path) -> None:
    assert _run("debug:of-%r.log", tmp_path).stderr == ""
    said = (tmp_path / "of-0.log").read_text()
    assert "made dup of world: rank 0 of 1" in said and "left dup of world" in said


@pytest.mark.parametrize(
    ("value", "names"),
    [("loud", ("HOCKET_LOG", "'loud'", "debug", "info")), ("info:no/such/file", ("HOCKET_LOG", NO_SUCH_FILE))],
)
def test_a_wrong_value(monkeypatch: pytest.MonkeyPatch, value: str, names: tuple[str, ...]) -> None:
    monkeypatch.setenv("HOCKET_LOG", value)
    with raises(hk.InvalidArgument, names=names):
        hk.init(backends="shm")
