"""The default folder of failure records."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hocket.boot import record_folder as module
from hocket.boot.record_folder import MOST_JOBS, forget_old_records, record_folder

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of a user whose cache folder is not writable."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # a cache folder must not be relative
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert record_folder("a/b") == tmp_path / "cache" / "hocket" / "records" / "a_b"


def test_the_temporary_folder_is_of_this_user_alone(temporary: Path) -> None:
    parent = record_folder("job").parent
    assert parent.parent == temporary and parent.stat().st_mode & 0o777 == 0o700
    assert record_folder("job").parent == parent  # the same for all ranks


@pytest.mark.parametrize("trap", ["link", "open to all"])
def test_a_folder_that_somebody_else_prepared_is_not_used(temporary: Path, trap: str) -> None:
    planted = temporary / f"hocket-records-{os.getuid()}"
    if trap == "link":
        (temporary / "elsewhere").mkdir()
        planted.symlink_to(temporary / "elsewhere")
    else:
        planted.mkdir()
        planted.chmod(0o777)
    found = record_folder("job").parent
    assert found != planted and found.stat().st_mode & 0o777 == 0o700


def test_the_last_jobs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_parent", lambda: tmp_path)
    for number in range(MOST_JOBS + 3):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (number, number))
    forget_old_records()
    assert {each.name for each in tmp_path.iterdir()} == {str(number) for number in range(3, MOST_JOBS + 3)}
