"""`hocket observe run` on the two hosts of the laboratory: programs that do not know hocket, one agent on each host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import _native
from hocket.bench.launchers import mpich_job, openmpi_job, wheel_file
from hocket.observe import ObservedRun, SavedProcess, open_run
from hocket.observe.saved import follow
from hocket.observe.store.followed_run import RunFollower

pytestmark = pytest.mark.timeout(170)
Run = Callable[..., list[subprocess.CompletedProcess[str]]]
Launched = Callable[[Any, list[str]], tuple[list[str], Mapping[str, str]]]
OBSERVE = [sys.executable, "-m", "hocket.cli", "observe", "run"]
PORT = 29777
GLOO = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(1000, 50))
for step in range(4):
    model(torch.ones(2, 1000)).sum().backward()
total = torch.ones(100)
dist.all_reduce(total)
assert total[0] == dist.get_world_size()
dist.barrier()
os._exit(0)  # gloo may abort at a normal exit
"""
MPI = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
mine, theirs = np.full(1000, world.rank, "i4"), np.empty(1000, "i4")
for _ in range(5):
    world.Sendrecv(mine, (world.rank + 1) % world.size, 3, theirs, (world.rank - 1) % world.size, 3)
assert (theirs == (world.rank - 1) % world.size).all()
world.Barrier()
"""


@pytest.fixture(autouse=True)
def _all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")
    monkeypatch.setenv("HOCKET_SECRET", "the secret of these tests")


def _ranks(run: ObservedRun) -> list[SavedProcess]:
    return [process for process in run.processes if len(process.events["foreign"])]


def _of_kind(process: SavedProcess, name: str) -> np.ndarray:
    events = process.events["foreign"]
    return events[events["kind"] == _native.OP_NAMES.index(name)]


def _check_order(ranks: list[SavedProcess], kind: str) -> None:
    """No rank leaves a collective before the last one has entered it, within the bound of the clocks."""
    begins, ends = (
        np.array([process.clock.seconds(_of_kind(process, kind)[field]) for process in ranks])
        for field in ("t_begin", "t_end")
    )
    error_s = max(process.clock.error_s for process in ranks)
    assert (ends.min(axis=0) >= begins.max(axis=0) - 2 * error_s).all()


@pytest.mark.parametrize("shift_s", [0, 500])
def test_torchrun_on_two_hosts(lab: Any, run_commands: Run, tmp_path: Path, shift_s: int) -> None:
    (tmp_path / "ddp.py").write_text(GLOO)
    first, second = lab.hosts
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
                "--master-addr", first.address, "--master-port", "29600"]  # fmt: skip
    program = str(tmp_path / "ddp.py")
    address = f"{first.address}:{PORT}"
    ahead = ["unshare", "--time", "--monotonic", str(shift_s), "--fork"] if shift_s else []
    commands = [
        first.command([*OBSERVE, "--output", str(tmp_path / "run"), "--listen", address, "--",
                       *torchrun, "--node-rank", "0", program]),
        second.command([*ahead, *OBSERVE, "--join", address, "--", *torchrun, "--node-rank", "1", program]),
    ]  # fmt: skip
    runs = run_commands(commands, env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0"})
    assert [run.returncode for run in runs] == [0, 0], [run.stdout for run in runs]
    run = open_run(tmp_path / "run")
    ranks = _ranks(run)
    assert [process.snapshot.owner.rank for process in ranks] == [0, 1, 2, 3]
    assert [process.host for process in ranks] == ["lab0", "lab0", "lab1", "lab1"]
    assert (run.description.host, [each.host for each in run.other_hosts]) == ("lab0", ["lab1"])
    for process in ranks:
        nbytes = _of_kind(process, "all_reduce")["nbytes"].tolist()
        assert sum(nbytes) == 4 * (1000 * 50 + 50) * 4 + 400  # the gradients of four steps, and the last one
    assert len({len(_of_kind(process, "all_reduce")) for process in ranks}) == 1
    assert (ranks[2].clock.error_s > 0) == (shift_s > 0) and ranks[2].clock.error_s < 0.1
    _check_order(ranks, "all_reduce")


def _mpich(lab: Any, program: list[str]) -> tuple[list[str], Mapping[str, str]]:
    (process,) = mpich_job([], 4).processes
    hosts = ",".join(host.address for host in lab.hosts)
    shell = ["-launcher", "rsh", "-launcher-exec", str(lab.remote_shell()), "-hosts", hosts, "-ppn", "2"]
    return [*process.argv, *shell, *OBSERVE, "--", *program], process.env


def _open_mpi(lab: Any, program: list[str]) -> tuple[list[str], Mapping[str, str]]:
    (process,) = openmpi_job([], 4).processes
    options = ["--host", ",".join(f"{host.address}:2" for host in lab.hosts)]
    options += ["--prtemca", "plm_ssh_agent", str(lab.remote_shell())]
    options += ["--prtemca", "prte_launch_agent", wheel_file("openmpi", "prted")]
    options += ["--mca", "mpi_yield_when_idle", "1", "-x", "HOCKET_OBSERVE_JOIN", "-x", "HOCKET_SECRET"]
    launcher, *rest = process.argv
    return [launcher, *options, *rest, *OBSERVE, "--", *program], process.env


@pytest.mark.parametrize("launched", [_mpich, _open_mpi])
def test_mpirun_over_two_hosts(lab: Any, run_commands: Run, tmp_path: Path, launched: Launched) -> None:
    """One launcher starts the ranks of both hosts, each under `observe run`; one of those of each host records."""
    (tmp_path / "ring.py").write_text(MPI)
    first = lab.hosts[0]
    command, env = launched(lab, [sys.executable, str(tmp_path / "ring.py")])
    observed = [*OBSERVE, "--output", str(tmp_path / "run"), "--listen", first.address, "--", *command]
    (done,) = run_commands([first.command(observed)], env={**os.environ, **env})
    assert done.returncode == 0, done.stdout
    run = open_run(tmp_path / "run")
    ranks = _ranks(run)
    assert [process.snapshot.owner.rank for process in ranks] == [0, 1, 2, 3], done.stdout
    assert sorted(process.host for process in ranks) == ["lab0", "lab0", "lab1", "lab1"]
    assert [each.host for each in run.other_hosts] == ["lab1"]
    for rank, process in enumerate(ranks):
        sent = _of_kind(process, "send")
        assert (sent["peer"].tolist(), sent["nbytes"].tolist()) == ([(rank + 1) % 4] * 5, [4000] * 5)
    _check_order(ranks, "barrier")


HANGS = """
import os, signal, sys
import numpy as np, hocket as hk
comm = hk.init(timeout=120)
comm.all_reduce(np.ones(4))
if comm.rank == 3:
    open(sys.argv[1], "w").close()
    os.kill(os.getpid(), signal.SIGSTOP)
comm.all_reduce(np.ones(1000))
comm.finalize()
"""


def test_top_shows_the_ranks_of_both_hosts(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    stopped = tmp_path / "stopped"
    address = f"{lab.hosts[0].address}:{PORT}"
    options = [["--output", str(tmp_path / "run"), "--listen", address], ["--join", address]]
    launchers = lab.launchers([str(tmp_path / "hangs.py"), str(stopped)], 2)
    started = []
    for host, option, launcher in zip(lab.hosts, options, launchers, strict=True):
        inside = launcher[len(host.command([])) :]
        started.append(subprocess.Popen(host.command([*OBSERVE, *option, "--", *inside]), start_new_session=True))
    try:
        deadline_s, seen = time.monotonic() + 40, ""
        while True:
            assert time.monotonic() < deadline_s, seen
            assert all(each.poll() is None for each in started), seen
            time.sleep(0.5)
            if not stopped.exists():
                continue
            top = [sys.executable, "-m", "hocket.cli", "observe", "top", str(started[0].pid), "--once", "--json"]
            done = subprocess.run(lab.hosts[0].command(top), capture_output=True, text=True, timeout=60)
            seen = done.stdout + done.stderr
            view = json.loads(done.stdout)
            ranks = [rank for rank in view["ranks"] if rank["activity"]["num_operations"]]
            waiting = [rank["waits_for"] for rank in ranks]
            if waiting == [[3], [3], [3], []]:
                break
        assert [rank["owner"]["host"] for rank in ranks] == ["lab0", "lab0", "lab1", "lab1"]
        assert len({rank["job"] for rank in ranks}) == 1 and view["problems"] == []
        assert ranks[3]["status"]["state"] == "stopped"
    finally:
        for each in started:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait(30)


BUSY = """
import os, sys, time
from hocket import observe
number = 0
while not os.path.exists(sys.argv[1]):
    with observe.region("busy", step=number):
        time.sleep(0.0001)
    number += 1
"""


def test_a_busy_host_leaves_a_slow_network_to_the_program(lab: Any, tmp_path: Path) -> None:
    """It records more than a share of its 4 Mbit/s, by a clock that is 500 s ahead: the rest comes at the end."""
    most_share, rate_nbytes_s, seconds = 0.65, 4e6 / 8, 8.0  # its queue lets 128 KiB through at once
    first, second = lab.hosts
    second.set_rate(4e-3)
    over, run, address = tmp_path / "over", tmp_path / "run", f"{first.address}:{PORT}"
    ahead = ["unshare", "--time", "--monotonic", "500", "--fork"]
    waits = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.02)"
    commands = [
        first.command([*OBSERVE, "--output", str(run), "--listen", address, "--", sys.executable, "-c", waits]),
        second.command([*ahead, *OBSERVE, "--join", address, "--", sys.executable, "-c", BUSY, str(over)]),
    ]
    started = [subprocess.Popen(command, start_new_session=True) for command in commands]
    try:
        deadline_s = time.monotonic() + 60
        while not [*run.glob("host-*/*.program")]:
            assert time.monotonic() < deadline_s and all(each.poll() is None for each in started)
            if run.exists():
                follow(run)
            time.sleep(0.1)
        follower, rows, late_s = RunFollower(run), 0, []
        sent_nbytes, began_s = _sent_nbytes(second), time.monotonic()
        while time.monotonic() < began_s + seconds:
            found = follower.look()
            if "regions" in found.tables:
                rows += len(found.tables["regions"]["ended_s"])
                late_s.append(found.now_s - found.tables["regions"]["ended_s"].max())
            time.sleep(0.02)
        share = (_sent_nbytes(second) - sent_nbytes) / (time.monotonic() - began_s) / rate_nbytes_s
        assert all(each.poll() is None for each in started)
        over.touch()
        assert [each.wait(120) for each in started] == [0, 0]
    finally:
        for each in started:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait(30)
    found_run = open_run(run)
    (busy,) = (each for each in found_run.processes if each.host == "lab1")
    assert found_run.problems == () and busy.problems == () and busy.lost == {}
    assert busy.events["program"]["aux"].tolist() == [*range(len(busy.events["program"]))]
    assert 100 < rows < len(busy.events["program"]), (rows, share)
    assert 0 < share < most_share
    assert -0.5 < min(late_s) < 30.0  # the clocks were compared


def _sent_nbytes(host: Any) -> int:
    return int(host.run("cat", "/sys/class/net/eth0/statistics/tx_bytes"))
