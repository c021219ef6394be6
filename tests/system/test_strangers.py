"""A stranger tries 42 ways to harm a job: no code of his is run, he gets no data, and the job goes on and is right.

He is another user; once in a network namespace of his own, and once on the host of rank 0 itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hocket.boot.environment import read_world

pytestmark = pytest.mark.timeout(170)
STRANGER = Path(__file__).parent / "stranger.py"
MARK = Path("/tmp/hocket-stranger-was-here")
FIRST_PORT, NUM_PORTS = 29501, 8
DEADLINE_S = 120.0

# Goes on until a file is there; new communicators, objects and arrays all the time. What it should be is counted.
_JOB = """
import os, sys, time
from pathlib import Path
import numpy as np
import hocket as hk
comm = hk.init(backends=sys.argv[2].split(","), timeout=60)
num_rounds = 0
while True:
    x = np.full(1000, comm.rank + num_rounds, np.int64)
    comm.all_reduce(x)
    assert (x == sum(range(comm.size)) + comm.size * num_rounds).all()
    told = comm.all_gather_object({"rank": comm.rank, "round": num_rounds})
    assert told == [{"rank": rank, "round": num_rounds} for rank in range(comm.size)]
    if num_rounds % 5 == 0:
        child = comm.dup()
        child.barrier()
        child.finalize()
    num_rounds += 1
    if comm.broadcast_object(Path(sys.argv[1]).exists(), 0):
        break
    time.sleep(0.05)
os.write(1, f"right {num_rounds}\\n".encode())  # one write, so that lines of two ranks stay apart
comm.finalize()
"""


def strange(prefix: Sequence[str], address: str, size: int, job: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-I", "-S", str(STRANGER), address, str(FIRST_PORT), str(NUM_PORTS), str(size), job]
    return subprocess.Popen([*prefix, *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_strangers(strangers: Sequence[subprocess.Popen[str]]) -> None:
    for each in strangers:
        output, error = each.communicate(timeout=DEADLINE_S)
        assert each.returncode == 0, error
        told = [json.loads(line) for line in output.splitlines()]
        assert len(told) >= 40
        assert [attack for attack in told if attack["bytes"]] == []
    assert not MARK.exists()


def helpers() -> list[str]:
    """Return the command lines of hocket's helper processes that are running."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "hocket.boot." in line and "import main" in line:
            lines.append(line)
    return lines


@pytest.fixture
def outside(lab: Any) -> Iterator[list[str]]:
    """A network namespace that is joined to the first host, as the beginning of a command."""
    waiting = ["unshare", "--net", "sh", "-c", "echo ready; read _"]
    keeper = subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdout is not None and keeper.stdin is not None
    keeper.stdout.readline()
    inside = ["nsenter", "-t", str(keeper.pid), "--net"]
    try:
        host = lab.hosts[0]
        host.run("ip", "link", "add", "eth9", "type", "veth", "peer", "name", "eth9", "netns", str(keeper.pid))
        host.run("ip", "addr", "add", "10.99.0.1/24", "dev", "eth9")
        host.run("ip", "link", "set", "eth9", "up")
        for command in (
            "ip addr add 10.99.0.2/24 dev eth9",
            "ip link set eth9 up",
            f"ip route add {host.address}/32 via 10.99.0.1",
        ):
            subprocess.run([*inside, *command.split()], check=True, capture_output=True)
        yield inside
    finally:
        keeper.stdin.close()
        keeper.wait()


def finish(runs: Sequence[subprocess.Popen[str]], num_ranks: int) -> None:
    outputs = [each.communicate(timeout=DEADLINE_S)[0] for each in runs]
    assert [each.returncode for each in runs] == [0] * len(runs), "".join(outputs)
    assert "".join(outputs).count("right ") == num_ranks


def check_nothing_is_left(before: list[str]) -> None:
    deadline = time.monotonic() + 20.0
    while len(helpers()) > len(before):
        assert time.monotonic() < deadline, helpers()
        time.sleep(0.1)


@pytest.mark.parametrize("backends", ["shm,gloo", "shm,mpi"])
def test_job_between_hosts(lab: Any, outside: list[str], tmp_path: Path, backends: str) -> None:
    MARK.unlink(missing_ok=True)
    (tmp_path / "job.py").write_text(_JOB)
    before, over = helpers(), tmp_path / "over"
    address = lab.hosts[0].address
    variables = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": address}
    variables |= {"MASTER_PORT": str(FIRST_PORT - 1), "HOCKET_JOB": f"{address}:{FIRST_PORT - 1}"}
    job = f"{read_world(variables).job_of_all_hosts}/0"
    strangers = [strange(prefix, address, 4, job) for prefix in (outside, lab.hosts[0].command([]))]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in lab.launchers([str(tmp_path / "job.py"), str(over), backends], 2)
    ]
    check_strangers(strangers)
    over.touch()
    finish(runs, 4)
    check_nothing_is_left(before)


def test_job_on_one_host(tmp_path: Path) -> None:
    MARK.unlink(missing_ok=True)
    (tmp_path / "job.py").write_text(_JOB)
    before, over = helpers(), tmp_path / "over"
    launcher = [sys.executable, "-m", "hocket.cli", "run", "-n", "2"]
    command = [*launcher, str(tmp_path / "job.py"), str(over), "shm,mpi,gloo"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check_strangers([strange([], "127.0.0.1", 2, "job/0")])
    over.touch()
    finish([run], 2)
    check_nothing_is_left(before)
