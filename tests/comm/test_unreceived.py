"""Messages that are never received: the leaving receiver gets a warning."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def _leave(comm: hk.Communicator, sends: list[tuple[int, int]], received: int) -> list[str]:
    """Rank 0 sends messages of (items, tag), and rank 1 receives some; return the warnings as rank 1 leaves."""
    part = comm.dup()
    x: Any = np.ones(1 << 16)
    if comm.rank == 0:
        works = [part.isend(x[:num_items], 1, tag) for num_items, tag in sends]
        comm.barrier()
        del works
    else:
        comm.barrier()
        for num_items, tag in sends[:received]:
            part.recv(x[:num_items], 0, tag)
    warned = []
    if comm.rank == 1:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            part.finalize()
        warned = [str(each.message) for each in caught]
    comm.barrier()
    if comm.rank == 0:
        try:
            part.finalize()
        except hk.PeerFailure:  # a long message waits for its receive
            pass
    return warned


@pytest.mark.parametrize(
    ("sends", "received", "names"),
    [
        ([(4, 7)], 0, ("rank 1", "rank 0", "tag 7", "32")),
        ([(4, 7), (2, 7)], 1, ("tag 7", "16")),
        ([(1 << 16, 3)], 0, ("tag 3", "524288")),
        ([(1, tag) for tag in range(5)], 0, ("tag 0", "tag 2", "2")),
    ],
)
def test_they_are_named(sends: list[tuple[int, int]], received: int, names: tuple[str, ...]) -> None:
    _, (warning,) = hk.spawn(_leave, 2, sends, received, timeout=50)
    assert_names(warning, *names)


def test_nothing_is_said_where_all_are_received() -> None:
    assert hk.spawn(_leave, 2, [(4, 7), (1000, 2)], 2, timeout=50) == [[], []]


def _leave_objects(comm: hk.Communicator) -> list[str]:
    """Rank 0 sends two objects and an array with the same tag; rank 1 receives the first."""
    part = comm.dup()
    if comm.rank == 0:
        for obj in ("a", ["b"]):
            part.send_object(obj, 1, 5)
        part.send(np.ones(3, np.int64), 1, 5)
    comm.barrier()
    warned = []
    if comm.rank == 1:
        assert part.recv_object(0, 5) == "a"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            part.finalize()
        warned = [str(each.message) for each in caught] + [each.filename for each in caught]
    comm.barrier()
    return warned


def test_an_object_is_one_message() -> None:
    _, (warning, file) = hk.spawn(_leave_objects, 2, timeout=50)
    assert_names(warning, "object", "24 bytes int64")
    assert warning.count("tag 5") == 2
    assert file == __file__


def _leave_a_full_ring(comm: hk.Communicator) -> list[int]:
    """Rank 0 sends more than fits into the ring; rank 1 leaves. Return the number sent before that, and after it."""
    part = comm.dup()
    sent = []
    if comm.rank == 0:
        works = [part.isend(np.ones(1000), 1, 5) for _ in range(1000)]
        comm.barrier()
        for _ in range(2):
            for _ in range(20):
                time.sleep(0.01)
                for work in works:
                    with contextlib.suppress(hk.HocketError):
                        work.test()
            sent.append(sum(work.done and work.exception() is None for work in works))
            comm.barrier()
        with contextlib.suppress(hk.HocketError):
            part.finalize()
        return sent
    comm.barrier()
    comm.barrier()  # rank 0 has filled the ring
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part.finalize()
    comm.barrier()
    return sent


def test_a_sender_is_not_told_that_they_were_received() -> None:
    before, after = hk.spawn(_leave_a_full_ring, 2, timeout=50)[0]
    assert 0 < before == after < 1000


def test_a_long_path_is_cut_at_its_beginning(tmp_path: Path) -> None:
    """A message has room for a part of the call site only; the end of it is kept, because it has file and line."""
    program = tmp_path / ("ä" * 60) / "sends_at.py"
    program.parent.mkdir()
    program.write_text(
        "import hocket as hk, numpy as np\n"
        "comm = hk.init()\n"
        "if comm.rank == 0:\n"
        "    comm.send(np.ones(2), 1)\n"
        "comm.barrier()\n"
        "comm.finalize()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(program)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0
    assert_names(done.stderr, "sends_at.py:4")
