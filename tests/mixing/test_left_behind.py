"""A library's pending data of a completed operation is sent while its rank waits for something else.

Rank 0 fills the buffers to rank 2, which does not poll, until the library accepts no more messages. Then a message from
rank 1 arrives, and the answer that rank 1 waits for finds no room. When rank 2 makes room, no operation of that library
is in flight on rank 0: the answer is sent only if the library is still driven.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket import _native

from ..load import scaled

pytestmark = pytest.mark.timeout(90)
TIMEOUT_S = 20
POLL_S = 0.3  # a message that is not complete by then has found no room
MOST = 2000  # messages; some libraries take any number


@pytest.fixture(autouse=True)
def _start_with_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_BACKENDS", "shm")  # for spawn's own communicator, which the ranks finalize at once


def _by_wait(comm: hk.Communicator, _: Path) -> None:
    comm.barrier(backend="shm")


def _by_test(comm: hk.Communicator, _: Path) -> None:
    work = comm.barrier(backend="shm", async_op=True)
    while not work.test():
        pass


def _by_opening(comm: hk.Communicator, _: Path) -> None:
    comm.dup()


def _by_thread(comm: hk.Communicator, answered: Path) -> None:
    """Wait outside hocket, where only hocket's progress thread drives libraries."""
    if comm.rank == 0:
        answered.read_text()
    if comm.rank == 1:
        answered.write_text("over")


_WAITS: dict[str, Callable[[hk.Communicator, Path], None]] = {
    "wait": _by_wait,
    "test": _by_test,
    "opening": _by_opening,
    "thread": _by_thread,
}


def _is_over(work: hk.Work, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not work.test():
        if time.monotonic() > deadline:
            return False
    return True


def _take(comm: hk.Communicator, library: str, x: Any, count: int) -> None:
    for _ in range(count):
        comm.recv(x, 0, backend=library)


def _find_room(comm: hk.Communicator, library: str, x: Any, may_look: Path) -> int:
    """Return the number of messages to rank 2 that complete before rank 2 polls."""
    room, num_sent = np.zeros(1, np.int64), np.zeros(1, np.int64)
    works: list[hk.Work] = []
    if comm.rank == 0:
        with may_look.open("w"):  # when rank 2 has opened it, too
            while len(works) < MOST and (not works or _is_over(works[-1], POLL_S)):
                works.append(comm.isend(x, 2, backend=library))
            room[0], num_sent[0] = sum(work.done for work in works), len(works)
    elif comm.rank == 2:
        may_look.read_text()
    comm.broadcast(room, 0, backend="shm")
    comm.broadcast(num_sent, 0, backend="shm")
    if comm.rank == 2:
        _take(comm, library, x, int(num_sent[0]))
    for work in works:
        work.wait()
    comm.barrier(backend="shm")
    return int(room[0])


def _leave_behind(comm: hk.Communicator, library: str, nbytes: int, wait: str, folder: str) -> bool:
    """Return whether all operations of this rank were complete before the answer could have been sent."""
    comm.finalize()
    progress = "thread" if wait == "thread" and comm.rank == 0 else "caller"
    comm = hk.init(backends=["shm", library], timeout=scaled(TIMEOUT_S), progress=progress)
    small, large = np.zeros(nbytes, np.uint8), np.zeros(300_000, np.uint8)
    comm.all_reduce(small, "max", backend=library)  # connects
    may_look, answered = Path(folder) / "may-look", Path(folder) / "answered"
    if comm.rank == 0:
        os.mkfifo(may_look)
        os.mkfifo(answered)
    comm.barrier(backend="shm")
    room = _find_room(comm, library, small, may_look)
    is_over = True
    if comm.rank == 0:
        with may_look.open("w"):
            works = [comm.isend(small, 2, backend=library) for _ in range(room)]
            is_over = all(_is_over(work, TIMEOUT_S / 4) for work in works)
            comm.send(small, 1, backend="shm")
            works.append(comm.irecv(large, 1, backend=library))
            is_over &= _is_over(works[-1], TIMEOUT_S / 4)
        for work in works:
            work.wait()
    elif comm.rank == 1:
        comm.recv(small, 0, backend="shm")
        comm.send(large, 0, backend=library)
    else:
        may_look.read_text()
        _take(comm, library, small, room)
    _WAITS[wait](comm, answered)
    comm.barrier(backend="shm")
    comm.finalize()
    return is_over


@pytest.mark.parametrize("wait", _WAITS)
@pytest.mark.parametrize("nbytes", [64, 8000])
def test_answer_of_mpi(nbytes: int, wait: str, tmp_path: Path) -> None:
    assert hk.spawn(_leave_behind, 3, "mpi", nbytes, wait, str(tmp_path), timeout=3 * TIMEOUT_S) == [True] * 3


@pytest.mark.parametrize("nbytes", [1000, 8000])
def test_answer_of_ucx(nbytes: int, tmp_path: Path) -> None:
    hk.spawn(_leave_behind, 3, "ucx", nbytes, "wait", str(tmp_path), timeout=3 * TIMEOUT_S)


def _drive_in_python(comm: hk.Communicator, wait: str, folder: str) -> int:
    comm.finalize()
    comm = hk.init(backends="shm", timeout=scaled(TIMEOUT_S), progress="thread" if wait == "thread" else "caller")
    may_go, answered = Path(folder) / "may-go", Path(folder) / "answered"
    num_driven = 0

    def drive() -> None:
        nonlocal num_driven
        num_driven += 1
        if num_driven == 3:
            may_go.write_text("now")
        if num_driven == 5:
            raise RuntimeError("nobody is to blame for this one")

    if comm.rank == 0:
        os.mkfifo(may_go)
        os.mkfifo(answered)
    comm.barrier()
    if comm.rank == 0:
        library = _native.DrivenLibrary(drive)
        _native.progress()
        assert num_driven == 0  # it was not used yet
        library.note_use()
    else:
        may_go.read_text()
    _WAITS[wait](comm, answered)
    if comm.rank == 0:
        while num_driven < 6:
            _native.progress()
        num_before = num_driven
        del library
        for _ in range(1000):
            _native.progress()
        assert num_driven == num_before
    comm.barrier()
    return num_driven


@pytest.mark.parametrize("wait", _WAITS)
def test_library_that_python_drives(wait: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    num_driven, other = hk.spawn(_drive_in_python, 2, wait, str(tmp_path), timeout=3 * TIMEOUT_S)
    assert num_driven >= 6 and other == 0
    assert "nobody is to blame" in capfd.readouterr().err
