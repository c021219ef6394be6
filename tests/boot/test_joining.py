"""Errors when ranks of several hosts join: real processes, each with its own host name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..program import start_python

pytestmark = pytest.mark.timeout(120)
DEADLINE_S = 60.0
BEGIN = """
import os, resource, signal, sys, time
import hocket as hk
rank = int(os.environ["RANK"])
began_s = time.monotonic()
def say(*words): print(*words, flush=True)
def start(timeout=30, **how):
    try:
        return hk.init(backends="gloo", timeout=timeout, **how)
    except Exception as error:
        say(type(error).__name__, error)
def note(name): open(name, "w").close()
def limit(nbytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
"""
StartRank = Callable[..., Any]


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[StartRank]:
    """Return start(script, rank, size, port, **variables), which starts a rank on its own host."""
    processes: list[Any] = []

    def start(script: str, rank: int, size: int, port: int, **variables: str) -> Any:
        path = tmp_path / f"script-{len(processes)}.py"
        path.write_text(BEGIN + script)
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")},
            **{name: str(value) for name, value in place.items()},
            "MASTER_ADDR": "127.0.0.1",
            "HOCKET_HOST": f"host-{rank}",
            "HOCKET_RECORD_DIR": str(tmp_path),
            **variables,
        }
        processes.append(start_python(str(path), folder=tmp_path, environment=environment))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


def told(process: Any) -> str:
    out, error = process.communicate(timeout=DEADLINE_S)
    return str(out + error)


def await_files(*paths: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def free_ports() -> int:
    """A port with 8 free ports after it, most likely."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1]) % 20000 + 10000


def servers(port: int) -> list[str]:
    """Listening sockets at the 9 ports from `port` on."""
    lines = Path("/proc/net/tcp").read_text().split("\n")[1:]
    places = [line.split()[1] for line in lines if line and line.split()[3] == "0A"]
    return [place for place in places if port <= int(place.rpartition(":")[2], 16) <= port + 8]


def test_why_one_rank_cannot_start_is_told_to_the_others_and_they_can_try_again(start_rank: StartRank) -> None:
    script = """
limit(4096 if rank == 1 else resource.RLIM_INFINITY)
assert start() is None
limit(resource.RLIM_INFINITY)
say("together again", start().size, f"after {time.monotonic() - began_s:.0f} s")
"""
    port = free_ports()
    processes = [start_rank(script, rank, 2, port) for rank in range(2)]
    first, second = (told(process) for process in processes)
    assert "PeerFailure" in first and "rank 1" in first and "ResourceExhausted" in first, first
    assert "ResourceExhausted" in second and "ulimit -f" in second, second
    assert "together again 2" in first and "together again 2" in second, first + second


def test_a_job_starts_beside_the_remains_of_an_earlier_one(start_rank: StartRank, tmp_path: Path) -> None:
    """A rank that still runs, and so its server, has the address, port and job name of the next job."""
    port = free_ports()
    script = "comm = start(); note(f'up-{rank}'); time.sleep(100)"
    old = [start_rank(script, rank, 2, port) for rank in range(2)]
    await_files(*(tmp_path / f"up-{rank}" for rank in range(2)))
    os.kill(old[1].pid, signal.SIGSTOP)
    os.kill(old[0].pid, signal.SIGKILL)
    new = [start_rank("say('up', start().size)", rank, 2, port) for rank in range(2)]
    assert [told(process) for process in new] == ["up 2\n"] * 2
    os.kill(old[1].pid, signal.SIGKILL)


def test_a_second_start_at_the_same_port(start_rank: StartRank) -> None:
    script = """
for _ in range(3):
    comm = start()
    if rank == 1:
        time.sleep(0.3)
    comm.finalize()
say("done")
"""
    port = free_ports()
    processes = [start_rank(script, rank, 2, port, HOCKET_CONTROL=f"127.0.0.1:{port}") for rank in range(2)]
    assert [told(process) for process in processes] == ["done\n"] * 2


def test_contradicting_sizes_are_told_to_both_at_once(start_rank: StartRank) -> None:
    port = free_ports()
    processes = [start_rank("start()", rank, size, port) for rank, size in ((0, 2), (2, 3))]
    for said in [told(process) for process in processes]:
        assert "BootstrapMismatch" in said and "rank 2" in said and "2 ranks" in said, said


@pytest.mark.parametrize("host", [b"n\xff1", b"a\nb"])
def test_names_of_hosts_are_text(start_rank: StartRank, host: bytes) -> None:
    said = told(start_rank("start()", 1, 2, free_ports(), HOCKET_HOST=os.fsdecode(host)))
    assert "BootstrapMismatch" in said and "HOCKET_HOST" in said, said


def test_listeners_that_say_nothing_do_not_hold_a_rank_up(start_rank: StartRank) -> None:
    port = free_ports()
    silent = []
    for each in range(port + 1, port + 9):
        with contextlib.suppress(OSError):
            silent.append(socket.create_server(("127.0.0.1", each)))
    said = told(start_rank("start(timeout=1); say(f'{time.monotonic() - began_s < 8}')", 1, 2, port))
    assert "CommTimeout" in said and "rank 0" in said and said.endswith("True\n"), said
    for listener in silent:
        listener.close()


def test_servers_that_nobody_wants_any_more_end(start_rank: StartRank, tmp_path: Path) -> None:
    """Rank 0 is stopped, for example by Ctrl-C, before it has joined its own server."""
    port = free_ports()
    script = """
from hocket.boot.joining import start_server
server = start_server(2, "j", 600.0, True)
note("started")
time.sleep(100)
"""
    process = start_rank(script, 0, 2, port, HOCKET_CONTROL=f"127.0.0.1:{port + 1}")
    await_files(tmp_path / "started")
    assert servers(port)
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while servers(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)
