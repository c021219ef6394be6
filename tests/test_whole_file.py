"""Files that are written whole or not at all, and through no link that somebody put there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from hocket.whole_file import write_whole


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
