"""`hocket observe top`, `attach` and `dump` on jobs with a frozen rank, and on processes that have no recorder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.trace import operations_in, read_recorder

from ..load import scaled
from ..program import hocket

pytestmark = pytest.mark.timeout(120)

# Rank 2 stops before the tenth operation. Rank 3 is inside a region, in a computation that never ends.
_FROZEN = """
import os, signal
import numpy as np
import hocket as hk
from hocket import observe
with hk.init() as comm:
    x = np.ones(1000, np.float32)
    for number in range(1, 11):
        if number == 10 and comm.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == 10 and comm.rank == 3:
            with observe.region("endless", step=10):
                while True:
                    pass
        comm.all_reduce(x)
"""


@contextmanager
def _job(tmp_path: Path, script: str, num_ranks: int) -> Iterator[int]:
    path = tmp_path / "script.py"
    path.write_text(script)
    launcher = subprocess.Popen([sys.executable, "-m", "hocket.cli", "run", "-n", str(num_ranks), str(path)])
    try:
        yield launcher.pid
    finally:
        launcher.kill()
        launcher.wait()


def _top(pid: int) -> list[dict[str, Any]]:
    done = hocket("observe", "top", str(pid), "--json", "--interval", "0.2")
    if done.returncode != 0:
        assert done.returncode == 1 and str(pid) in done.stderr, done.stderr  # no recorder yet
        return []
    return json.loads(done.stdout)["ranks"]


def _await_frozen(pid: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + scaled(40)
    while time.monotonic() < deadline:
        ranks = _top(pid)
        waiting = [rank["doing"] and rank["doing"]["number"] == 10 for rank in ranks]
        if len(ranks) == 4 and all(waiting[:2]) and ranks[2]["status"]["state"] == "stopped" and ranks[3]["doing"]:
            return ranks
        time.sleep(0.1)
    raise AssertionError(f"the job did not come to operation 10: {ranks}")


def test_a_job_with_a_frozen_rank_and_one_that_computes(tmp_path: Path) -> None:
    with _job(tmp_path, _FROZEN, 4) as pid:
        ranks = _await_frozen(pid)
        for rank in ranks[:2]:
            assert rank["waits_for"] == [2, 3]
            doing = rank["doing"]
            assert (doing["name"], doing["target"], doing["nbytes"]) == ("all_reduce", "world", 4000)
            assert 0 <= doing["since_s"] < scaled(60)
        assert (ranks[3]["doing"]["name"], ranks[3]["status"]["state"]) == ("endless", "running")
        screen = hocket("observe", "top", str(pid), "--once").stdout
        assert "ranks wait for ranks 2, 3" in screen and "stopped" in screen and "region endless" in screen

        stopped = ranks[2]["owner"]["pid"]
        (shown,) = json.loads(hocket("observe", "attach", str(stopped), "--last", "3", "--json").stdout)
        assert [event["number"] for event in shown["events"]] == [7, 8, 9]
        assert {event["state"] for event in shown["events"]} == {"completed"}
        assert "all_reduce" in hocket("observe", "attach", str(stopped)).stdout

        copies = tmp_path / "copies"
        done = hocket("observe", "dump", str(pid), "--output", str(copies))
        assert done.returncode == 0 and len(done.stdout.split()) == 4
        again = hocket("observe", "dump", str(pid), "--output", str(copies))
        assert again.returncode == 2 and str(copies) in again.stderr
        os.kill(stopped, signal.SIGCONT)
    snapshots = [read_recorder(path) for path in copies.iterdir()]
    assert {snapshot.owner.rank for snapshot in snapshots} == {0, 1, 2, 3}
    assert all(operations_in(snapshot)[-1].record.seq in (9, 10) for snapshot in snapshots)


# Rank 1 kills itself; the launcher, told to wait, is stopped so that it does not end the others.
_KILLED = """
import os, signal, time
import numpy as np
import hocket as hk
comm = hk.init()
x = np.ones(16, np.float32)
for number in range(1, 100):
    comm.all_reduce(x)
if comm.rank == 1:
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(x, timeout=60)
"""


def test_a_killed_rank_is_read_through_its_launcher(tmp_path: Path) -> None:
    with _job(tmp_path, _KILLED, 2) as pid:
        deadline = time.monotonic() + scaled(40)
        ranks: list[dict[str, Any]] = []
        while time.monotonic() < deadline and not (len(ranks) == 2 and ranks[1]["status"] is None):
            ranks = _top(pid)
            time.sleep(0.1)
        assert ranks[1]["status"] is None and not ranks[1]["owner"]["has_ended"]
        assert ranks[1]["activity"]["latest"]["world"] == 99
        assert "killed" in hocket("observe", "top", str(pid), "--once").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("top", "999999999"), 1, ["999999999"]),
        (("top", "0"), 2, ["PID"]),
        (("top", "x"), 2, ["PID"]),
        (("attach", "1"), 1, ["1", "recorder"]),
        (("attach", "1", "--last", "0"), 2, ["--last"]),
        (("dump", "999999999", "--output", "copies"), 1, ["999999999"]),
        (("run",), 2, ["COMMAND"]),
        (("run", "--layers", "disk", "--output", "run", "--", "true"), 2, ["disk", "comm, io"]),
        (("run", "--layers", "", "--output", "run", "--", "true"), 2, ["comm, io"]),
        (("run", "--output", "run", "--", "no-such-program"), 2, ["no-such-program"]),
        (("run", "--output", "/proc/none", "--", "true"), 2, ["/proc/none"]),
        (("watch",), 2, ["watch"]),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], code: int, words: list[str], tmp_path: Path) -> None:
    done = hocket("observe", *arguments, folder=tmp_path)
    assert done.returncode == code, done
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_unavailable_and_why() -> None:
    sources = {each["name"]: each for each in json.loads(hocket("observe", "doctor", "--json").stdout)}
    assert sources["recorder"]["is_available"] and sources["processes"]["is_available"]
    assert all(each["reason"] for each in sources.values())
    text = hocket("observe", "doctor").stdout
    assert len(text.splitlines()) == len(sources) and "unavailable: " in text
    off = {**os.environ, "HOCKET_RECORDER": "0"}
    sources = {each["name"]: each for each in json.loads(hocket("observe", "doctor", "--json", environment=off).stdout)}
    assert not sources["recorder"]["is_available"] and "HOCKET_RECORDER" in sources["recorder"]["reason"]


@pytest.mark.parametrize("interval", ["inf", "nan", "1e9"])
def test_intervals_that_no_clock_has(interval: str) -> None:
    done = hocket("observe", "top", str(os.getpid()), "--interval", interval)
    assert done.returncode == 2 and interval in done.stderr.replace("1000000000.0", "1e9"), done.stderr
