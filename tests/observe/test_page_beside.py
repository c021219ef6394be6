"""`hocket run --observe`: the page stands beside a training while it is recorded, and goes when it is over."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hocket import observe
from hocket.errors import PeerFailure
from hocket.observe.processes import descendants_of, parents

from ..load import scaled
from ..naming import assert_names
from ..tier import is_full
from ..waiting import until

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(180)
_PROGRAM = """
import os, sys, time
import numpy as np
import hocket as hk
with hk.init(backends="shm") as comm:
    is_over = np.zeros(1, np.float32)
    while not is_over[0]:
        time.sleep(0.01)
        is_over[0] = os.path.exists(sys.argv[1])
        comm.all_reduce(is_over)
sys.exit(int(sys.argv[2]))
"""
_STUCK = """
import os, sys, time
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm", timeout=300) as comm:
    comm.all_reduce(np.ones(4))
    if comm.rank == 1:
        with observe.region("loading"):
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
    comm.all_reduce(np.ones(1000))
sys.exit(int(sys.argv[2]))
"""


@contextmanager
def _observed(
    folder: Path, code: int = 0, program: str = _PROGRAM
) -> Iterator[tuple[subprocess.Popen[str], observe.StoreClient]]:
    """A job under `hocket run --observe`, and a client of its page."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "--observe", "program.py", "over", str(code)]
    job = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert job.stderr is not None
        found = None
        deadline = time.monotonic() + scaled(60)
        while found is None:
            assert select.select([job.stderr], [], [], max(0.0, deadline - time.monotonic()))[0], "no address"
            line = job.stderr.readline()
            assert line, "it ended without an address"
            found = re.search(r"(http://[0-9.:]+)/#token=(\S+)", line)
        with observe.StoreClient(*found.groups(), timeout=scaled(20)) as client:
            yield job, client
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate(timeout=scaled(60))


def _until_live(client: observe.StoreClient) -> str:
    """The run that has some operations."""

    def live() -> list[str]:
        names = client.ask("/v1/runs")["runs"]
        totals = ((name, client.ask(f"/v1/runs/{name}/questions/totals")["rows"]) for name in names)
        return [name for name, rows in totals if any(row[0] == "operations" and row[1] > 20 for row in rows)]

    return until(live)[0]


def _until_unfinished(client: observe.StoreClient, seconds: float) -> tuple[str, dict[str, Any]]:
    """The run, and its operation that has been under way for so long."""

    def unfinished() -> list[tuple[str, dict[str, Any]]]:
        names = client.ask("/v1/runs")["runs"]
        first = ((name, client.ask(f"/v1/runs/{name}/views/overview")["unfinished"][:1]) for name in names)
        return [(name, row) for name, rows in first for row in rows if row["seconds"] > seconds]

    return until(unfinished)[0]


def _is_gone(client: observe.StoreClient) -> bool:
    try:
        client.ask("/v1/runs")
    except PeerFailure:
        return True
    return False


@pytest.mark.parametrize("code", [0, 3] if is_full() else [3])  # others end with 0
def test_the_page_shows_the_job_and_goes_with_it(tmp_path: Path, code: int) -> None:
    with _observed(tmp_path, code) as (job, client):
        name = _until_live(client)
        assert client.ask(f"/v1/runs/{name}")["is_live"]
        (tmp_path / "over").touch()
        assert job.wait(scaled(90)) == code
        assert _is_gone(client)
    (folder,) = tmp_path.glob("hocket-run-*")
    run = observe.open_run(folder)
    assert run.description.exit_code == code
    assert {each.snapshot.owner.rank for each in run.processes} >= {0, 1}


def test_strangers_on_the_port_write_nothing_to_the_terminal(tmp_path: Path) -> None:
    draw = random.Random(0)
    with _observed(tmp_path) as (job, client):
        name = _until_live(client)
        port = int(client._url.rpartition(":")[2])
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", port), timeout=scaled(20)) as stranger:
                stranger.sendall(draw.randbytes(draw.randrange(1, 4000)))
                stranger.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    stranger.recv(1000)
        assert client.ask(f"/v1/runs/{name}")["is_live"]
        (tmp_path / "over").touch()
        assert job.wait(scaled(90)) == 0
        assert job.stderr is not None
        assert [line for line in job.stderr if "HTTP" in line] == []


def test_ctrl_c_ends_the_job_and_the_page_and_the_run_is_saved(tmp_path: Path) -> None:
    with _observed(tmp_path) as (job, client):
        _until_live(client)
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does
        assert job.wait(scaled(90)) != 0
        assert _is_gone(client)
    (folder,) = tmp_path.glob("hocket-run-*")
    assert len(observe.open_run(folder).processes) >= 2


def test_the_rank_that_does_not_arrive_is_named_while_the_others_wait(tmp_path: Path) -> None:
    with _observed(tmp_path, program=_STUCK) as (job, client):
        name, found = _until_unfinished(client, 1.0)
        assert client.ask(f"/v1/runs/{name}")["is_live"]
        assert (found["op"], found["communicator"], found["nbytes"]) == ("all_reduce", "world", 8000)
        assert (found["entered"], found["missing"], found["unknown"]) == ("0", "1", "")
        assert "loading" in found["doing"]
        assert _until_unfinished(client, found["seconds"])[1]["began_s"] == pytest.approx(found["began_s"], abs=0.01)
        (tmp_path / "over").touch()
        assert job.wait(scaled(90)) == 0
    (folder,) = tmp_path.glob("hocket-run-*")
    assert len(_unfinished(folder)) == 0


def test_what_never_ended_is_told_of_a_job_that_was_killed(tmp_path: Path) -> None:
    with _observed(tmp_path, program=_STUCK) as (job, client):
        _until_unfinished(client, 0.0)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(scaled(90)) != 0
    (folder,) = tmp_path.glob("hocket-run-*")
    assert [row[:4] for row in _unfinished(folder)] == [("all_reduce", 8000, "0", "1")]


@pytest.mark.parametrize("killed", ["the agent", "hocket run"])
def test_no_rank_is_left_when_the_process_that_records_was_killed(tmp_path: Path, killed: str) -> None:
    with _observed(tmp_path) as (job, client):
        _until_live(client)
        below = descendants_of(job.pid)[1:]
        (agent,) = [pid for pid in below if parents().get(pid) == job.pid]
        handles = [os.pidfd_open(pid) for pid in below]
        os.kill(agent if killed == "the agent" else job.pid, signal.SIGKILL)
        assert job.wait(scaled(60)) == (128 + signal.SIGKILL if killed == "the agent" else -signal.SIGKILL)
        deadline = time.monotonic() + scaled(30)
        for handle in handles:
            assert select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]
            os.close(handle)
        assert len(below) >= 4  # with the launcher and both ranks
        assert job.stderr is not None
        said = [line for line in job.stderr.read().splitlines() if str(agent) in line]
    if killed == "the agent":
        assert len(said) == 1
        assert_names(said[0], "hocket run", "SIGKILL", "ranks")
    else:  # nobody is left to say something, and what was recorded is whole
        (folder,) = tmp_path.glob("hocket-run-*")
        assert observe.open_run(folder).description.exit_code == 128 + signal.SIGTERM


def _unfinished(folder: Path) -> tuple[tuple[Any, ...], ...]:
    sql = "SELECT op, nbytes, entered, missing, communicator, number FROM unfinished"
    return observe.query_run(observe.open_run(folder), sql).rows
