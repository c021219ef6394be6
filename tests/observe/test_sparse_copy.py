"""Copies of recorders without the memory that nobody has used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hocket.observe import open_run, record_run
from hocket.observe.sparse_copy import copy_sparsely


def used_nbytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 5_000_000])
def test_copies_are_equal(size: int, tmp_path: Path) -> None:
    chosen = random.Random(size)
    source = tmp_path / "source"
    with source.open("wb") as file:
        for _ in range(20):
            if size:
                file.seek(chosen.randrange(size))
                file.write(chosen.randbytes(min(chosen.randrange(1, 9000), size - file.tell())))
        file.truncate(size)
    copy_sparsely(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_zeros_take_no_room(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"begin" + bytes(4_000_000) + b"end")
    copy_sparsely(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(4_000_000)
    if used_nbytes(tmp_path / "hole") == 0:  # the file system has holes
        assert used_nbytes(tmp_path / "copy") <= 64 << 10


def test_a_short_process_costs_what_it_used(tmp_path: Path) -> None:
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    (path,) = (tmp_path / "run").glob("*.recorder")
    (process,) = open_run(tmp_path / "run").processes
    assert process.snapshot.problems == () and len(process.events["io"]) > 0
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(path.stat().st_size)
    if used_nbytes(tmp_path / "hole") == 0:
        assert used_nbytes(path) <= 256 << 10 < path.stat().st_size
