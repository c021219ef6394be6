"""What is read from outside of ranks that were killed, are stopped, or wait in native code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import RecorderError
from hocket.trace.attach import find_recorders
from hocket.trace.operations import operations_in

from ..load import scaled
from ..tier import is_full

pytestmark = pytest.mark.timeout(120)

# Forks before init(), so that a start costs milliseconds. A child records operations whose sizes follow from their
# numbers; it is killed after a time from the seed, and its recorder is read from the descriptor that is left.
_KILLED = """
import json, os, random, signal, sys, time
import numpy as np
import hocket as hk
from hocket.trace import read_recorder
from hocket.trace.operations import operations_in

SIZES = 61

def work(ready):
    comm = hk.init()
    x = np.ones(SIZES, np.float32)
    for number in range(1, 10**9):
        part = x[: 1 + number % SIZES]
        if number % 5:
            comm.all_reduce(part)
        else:
            comm.all_reduce(part, async_op=True).wait()
        if number == 3:
            os.write(ready, b"1")

def check(fd):
    snapshot = read_recorder(f"/proc/self/fd/{fd}")
    assert snapshot.problems == (), snapshot.problems
    ring = snapshot.rings["operations"]
    assert ring.num_unreadable <= 1
    assert ring.issued - ring.recorded in (0, 1) and ring.dropped == ring.sampled_out == 0
    found = [each for each in operations_in(snapshot, ring.recorded) if each.communicator == "world"]
    kept = found[-4096:]
    assert len(kept) == min(4096, kept[-1].record.seq), len(kept)
    last = 0
    for place, each in enumerate(kept):
        record = each.record
        assert record.seq == kept[0].record.seq + place, (place, record)
        assert (record.op, record.nbytes, record.backend) == ("all_reduce", 4 * (1 + record.seq % SIZES), "shm"), record
        assert record.begin_ns >= last, record
        last = record.begin_ns
        if place < len(kept) - 1:
            assert record.state == "completed" and record.seconds >= 0, record
        else:
            assert record.state in ("issued", "started", "completed"), record
    return kept[-1].record.state

states = []
for seed in map(int, sys.argv[1:]):
    fd = os.memfd_create("hocket-recorder")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ.update(HOCKET_RECORDER_FD=str(fd))
        work(write_end)
    assert os.read(read_end, 1)
    time.sleep(random.Random(seed).uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    states.append(check(fd))
    for each in (fd, read_end, write_end):
        os.close(each)
print(json.dumps(states))
"""


def test_the_last_operations_of_a_killed_rank() -> None:
    seeds = range(100 if is_full() else 10)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, *map(str, seeds)], capture_output=True, text=True, timeout=scaled(100)
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == len(seeds)


# Rank 1 stops itself before the tenth operation, for which rank 0 waits in native code.
_STOPPED = """
import os, signal
import numpy as np
import hocket as hk
comm = hk.init()
x = np.ones(8, np.float32)
for number in range(1, 21):
    if comm.rank == 1 and number == 10:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(x)
"""


def test_a_stopped_rank_and_the_one_that_waits_for_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_STOPPED)
    launcher = subprocess.Popen([sys.executable, "-m", "hocket", "run", "-n", "2", str(script)])
    try:
        in_flight = _await_operation(launcher.pid, rank=0, seq=10)
        assert (in_flight.is_in_flight, in_flight.record.op, in_flight.record.nbytes) == (True, "all_reduce", 32)
        places = {each.read().owner.rank: each for each in find_recorders(launcher.pid)}
        assert set(places) == {0, 1}
        stopped = places[1].read()
        last = operations_in(stopped)[-1]
        assert (last.record.seq, last.record.state, last.communicator) == (9, "completed", "world")
        assert find_recorders(stopped.owner.pid)[0].read().owner == stopped.owner
        os.kill(stopped.owner.pid, signal.SIGCONT)
        assert launcher.wait(scaled(30)) == 0
    finally:
        launcher.kill()
        launcher.wait()


def _await_operation(launcher: int, rank: int, seq: int) -> Any:
    deadline = time.monotonic() + scaled(30)
    while time.monotonic() < deadline:
        for place in _places(launcher):
            snapshot = _read(place)
            operations = operations_in(snapshot) if snapshot and snapshot.owner.rank == rank else []
            if operations and operations[-1].communicator == "world" and operations[-1].record.seq == seq:
                return operations[-1]
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} did not come to operation {seq}")


def _places(pid: int) -> list[Any]:
    try:
        return find_recorders(pid)
    except RecorderError:
        return []  # it has not made them yet


def _read(place: Any) -> Any:
    try:
        return place.read()
    except RecorderError:
        return None  # the rank has not begun to record
