"""The hooks of file I/O record every byte that strace sees, file by file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ..observe.test_io import compiled
from ..observe.traced_io import Bytes, recorded_bytes, run_hooked, snapshots, traced_bytes

pytestmark = pytest.mark.timeout(240)
SCRIPT = Path(__file__).parents[1] / "observe" / "io_script.py"
CATEGORIES = ("builtin", "numpy", "torch", "arrow", "children")


@pytest.fixture(scope="session", autouse=True)
def strace() -> None:
    """Fail where strace is missing, and name the package."""
    assert shutil.which("strace"), "strace is missing: install the package strace"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`io_program.cpp`, compiled."""
    return compiled(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bytes, Bytes]:
    """Folder of the files of `io_script.py`, and their bytes as strace and as the recorders say."""
    folder = tmp_path_factory.mktemp("script")
    files = folder / "files"
    files.mkdir()
    command: list[str | Path] = [sys.executable, SCRIPT, files]
    result = run_hooked(command, folder / "recorders", folder / "trace")
    assert result.returncode == 0, result.stderr
    return files, traced_bytes(folder / "trace"), recorded_bytes(snapshots(folder / "recorders"))


def compare(traced: Bytes, recorded: Bytes) -> None:
    """Each file, and so the sum of all."""
    assert recorded.read == traced.read
    assert recorded.written == traced.written


@pytest.mark.parametrize("category", CATEGORIES)
def test_libraries_of_python(script: tuple[Path, Bytes, Bytes], category: str) -> None:
    files, traced, recorded = script
    expected = traced.of(f"{files}/{category}-")
    assert expected[0] > 0 and expected[1] > 0
    assert recorded.of(f"{files}/{category}-") == expected
    print(f"{category}: {expected[0]} bytes read and {expected[1]} written, all of them recorded")


def test_every_file_of_the_script(script: tuple[Path, Bytes, Bytes]) -> None:
    _, traced, recorded = script
    compare(traced, recorded)


@pytest.mark.parametrize(
    "way", ["stdio", "vectored", "asynchronous", "handler", "threads", "children", "close-all", "deleted"]
)
def test_ways_of_native_programs(program: Path, way: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    result = run_hooked([program, way, files], tmp_path / "recorders", tmp_path / "trace")
    assert result.returncode == 0, result.stderr
    traced, recorded = traced_bytes(tmp_path / "trace"), recorded_bytes(snapshots(tmp_path / "recorders"))
    assert sum(traced.of(str(files))) > 0
    compare(traced, recorded)
