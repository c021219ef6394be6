"""Recorders that are truncated, foreign, newer or damaged, and files that are no recorders at all."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.errors import RecorderError
from hocket.trace import RecorderSnapshot, find_recorders, operations_in, read_recorder

from ..naming import raises
from ..tier import is_full

pytestmark = pytest.mark.timeout(120)
_HEAD_NBYTES = 400
_DEFINITIONS_AT, _TABLES_AT, _RINGS_AT, _LATER_RINGS_AT = 448, 512, 640, 1664

_PROGRAM = """
import os, sys
import numpy as np
import hocket as hk
from hocket.trace import find_recorders

with hk.init(backends=["shm"]) as comm:
    for number in range(1, 40):
        comm.all_reduce(np.ones(number, np.float32))
    (place,) = find_recorders(os.getpid())
    sys.stdout.buffer.write(place.path.read_bytes())
"""


@pytest.fixture(scope="module")
def whole() -> bytes:
    """The recorder of a process, after a few operations: of another one, since this one's has other tests' names."""
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, timeout=60, check=True)
    return run.stdout


def _read(content: bytes, folder: Path) -> RecorderSnapshot:
    path = folder / "recorder"
    path.write_bytes(content)
    return read_recorder(path)


def test_a_copy_says_the_same(whole: bytes, tmp_path: Path) -> None:
    snapshot = _read(whole, tmp_path)
    assert snapshot.problems == () and snapshot.owner.pid > 0
    of_world = [each.record for each in operations_in(snapshot) if each.communicator == "world"][-39:]
    assert [record.nbytes for record in of_world] == [4 * number for number in range(1, 40)]
    ours = snapshot.histograms[snapshot.histograms["nbytes"] == sum(range(16, 32)) * 4]
    assert ours["count"].sum() >= 16


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["offset 0", "0 bytes"]),
        (b"HCKRECR1", ["offset 8", "8 bytes"]),
        (b"\x7fELF" + bytes(5000), ["offset 0", "ELF", "HCKRECR1"]),
        (b"HCKRECR1" + struct.pack("<I", 2) + bytes(5000), ["offset 8", "number 2", "up to 1"]),
        (b"HCKRECR1" + struct.pack("<I", 1) + bytes(5000), ["offset 8", "sizes"]),
    ],
)
def test_no_recorder_at_all(content: bytes, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(RecorderError) as caught:
        _read(content, tmp_path)
    for word in [str(tmp_path / "recorder"), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path), lambda path: None])
def test_no_file_at_all(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "recorder")
    with pytest.raises(RecorderError, match="recorder"):
        read_recorder(tmp_path / "recorder")


def test_what_a_truncated_file_still_has_is_read(whole: bytes, tmp_path: Path) -> None:
    snapshot = _read(whole, tmp_path)
    ring_at = struct.unpack_from("<Q", whole, _RINGS_AT)[0]
    cut = _read(whole[: ring_at + 64 * 20 + 7], tmp_path)
    assert len(cut.rings["operations"].events) == 20
    assert cut.definitions == snapshot.definitions
    assert any(f"offset {ring_at + 64 * 20}" in problem and "20 of 8192" in problem for problem in cut.problems)


def test_what_an_earlier_version_has_written_lacks_later_rings(whole: bytes, tmp_path: Path) -> None:
    earlier = bytearray(whole)
    earlier[_LATER_RINGS_AT : _LATER_RINGS_AT + 128] = bytes(128)
    snapshot = _read(bytes(earlier), tmp_path)
    assert snapshot.problems == () and len(snapshot.rings["dask"].events) == snapshot.rings["dask"].capacity == 0
    assert len(snapshot.rings["operations"].events) == len(_read(whole, tmp_path).rings["operations"].events)


@pytest.mark.parametrize("nbytes", [_HEAD_NBYTES, 500, 639, 1000, 4096, 5000, 300_000])
def test_every_truncation_is_said(whole: bytes, nbytes: int, tmp_path: Path) -> None:
    snapshot = _read(whole[:nbytes], tmp_path)
    assert snapshot.owner.pid > 0
    assert snapshot.problems
    assert all("recorder, offset" in problem for problem in snapshot.problems)


def test_a_damaged_slot_is_skipped(whole: bytes, tmp_path: Path) -> None:
    ring_at = struct.unpack_from("<Q", whole, _RINGS_AT)[0]
    damaged = bytearray(whole)
    before = _read(whole, tmp_path).rings["operations"]
    damaged[ring_at + 3 * 64 + 52] = 0xFF  # the kind of an operation that there is not
    damaged[ring_at + 5 * 64 + 60] |= 1  # still being written
    after = _read(bytes(damaged), tmp_path).rings["operations"]
    assert (len(after.events), after.num_unreadable) == (len(before.events) - 2, before.num_unreadable + 2)


@pytest.mark.parametrize(
    ("at", "value", "word"),
    [
        (_DEFINITIONS_AT + 16, 2**63, "names"),
        (_TABLES_AT, 2**40, "histogram table 0"),
        (_TABLES_AT + 8, 2**50, "histogram table 0"),
        (_RINGS_AT, 2**63 + 5, "ring operations"),
        (_RINGS_AT + 8, 2**33, "ring operations"),
        (_RINGS_AT + 8, 12345, "ring operations"),
        (_LATER_RINGS_AT, 2**40, "ring dask"),
        (_LATER_RINGS_AT + 8, 12345, "ring dask"),
    ],
)
def test_offsets_and_sizes_are_bounded(whole: bytes, at: int, value: int, word: str, tmp_path: Path) -> None:
    damaged = bytearray(whole)
    struct.pack_into("<Q", damaged, at, value)
    snapshot = _read(bytes(damaged), tmp_path)
    assert any(word in problem for problem in snapshot.problems)


def test_any_damage_is_an_error_or_a_snapshot(whole: bytes, tmp_path: Path) -> None:
    for seed in range(300 if is_full() else 60):
        generator = random.Random(seed)
        damaged = bytearray(whole[:600_000])
        for _ in range(generator.choice((1, 3, 30))):
            at = generator.randrange(generator.choice((_HEAD_NBYTES, 1100, 8192, len(damaged))))
            damaged[at] = generator.randrange(256)
        try:
            operations_in(_read(bytes(damaged), tmp_path))
        except RecorderError:
            continue


def test_processes_without_a_recorder() -> None:
    with raises(RecorderError, names="4194304"):
        find_recorders(4194304)
    sleeping = subprocess.Popen(["sleep", "60"])
    try:
        with raises(RecorderError, names=(str(sleeping.pid), "HOCKET_RECORDER=0")):
            find_recorders(sleeping.pid)
    finally:
        sleeping.kill()
        sleeping.wait()
