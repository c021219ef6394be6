"""Files are written completely or not at all, and never through a planted symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from hocket.errors import InvalidArgument
from hocket.whole_file import check_output, write_whole

from .naming import raises


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_whole(path, lambda part: part.write_text("new"))
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_names_cannot_be_guessed_and_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, victim = tmp_path / "file", tmp_path / "victim"
    names = set()

    def write(part: Path) -> None:
        names.add(part.name)
        part.write_text("a")

    for _ in range(3):
        write_whole(path, write)
    assert len(names) == 3
    monkeypatch.setattr(os, "urandom", bytes)
    victim.write_text("untouched")
    (tmp_path / f".file.{bytes(8).hex()}.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(path, write)
    assert victim.read_text() == "untouched"


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match="pipe"):
        write_whole(path, lambda part: part.write_text("new"))
    with raises(InvalidArgument, names=str(path)):
        check_output(path, is_replaced=True)
    assert stat.S_ISFIFO(path.lstat().st_mode) and os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_cannot_be_written_is_named_before(tmp_path: Path, is_replaced: bool) -> None:
    (tmp_path / "file").write_text("old")
    for path in (tmp_path, tmp_path / "nothere" / "file", tmp_path / "file" / "file", Path("/proc/file")):
        with raises(InvalidArgument, names=str(path if path.parent.is_dir() else path.parent)):
            check_output(path, is_replaced=is_replaced)
    for path in (tmp_path / "file", tmp_path / "new"):
        check_output(path, is_replaced=is_replaced)
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "old"
