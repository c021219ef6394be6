"""Jobs on two hosts with a network between them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(170)
PROGRAMS = Path(__file__).parents[1] / "mixing" / "hosts_rank.py"
Run = Callable[..., list[subprocess.CompletedProcess[str]]]


def check(runs: list[subprocess.CompletedProcess[str]]) -> str:
    output = "".join(run.stdout for run in runs)
    assert [run.returncode for run in runs] == [0] * len(runs), output
    return output


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text("import hocket as hk\nimport numpy as np\n" + text)
    return str(path)


@pytest.mark.parametrize("num_local", [1, 2])
def test_random_programs(lab: Any, run_commands: Run, num_local: int) -> None:
    output = check(run_commands(lab.launchers([str(PROGRAMS), "77", "30"], num_local)))
    assert output.count("all programs went through") == 2 * num_local


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_data_crosses_the_link(lab: Any, run_commands: Run, tmp_path: Path, backend: str) -> None:
    """No library finds a way around it: of 1 MiB that two ranks reduce, each has to send a half at least."""
    program = script(
        tmp_path,
        f"""
from pathlib import Path
def sent():
    comm.barrier()
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
comm = hk.init(backends=["shm", "{backend}"], timeout=60)
local = comm.split(comm.rank // 2)
x = np.ones(1 << 18, np.float32)
before = sent()
comm.all_reduce(x)
between = sent()
local.all_reduce(x)
after = sent()
assert (x == 8).all()
if comm.local_rank == 0:
    print("sent", between - before, after - between)
comm.finalize()
""",
    )
    output = check(run_commands(lab.launchers([program], 2)))
    counts = re.findall(r"sent (\d+) (\d+)", output)
    assert len(counts) == 2
    for over_the_link, within_the_host in counts:
        assert int(over_the_link) > 1 << 19 and int(within_the_host) < 1 << 16


def test_link_is_no_faster_than_asked_for(lab: Any, lab_module: ModuleType) -> None:
    assert 0 < lab_module.speed_gbit_s(lab) < 1.1


def test_torchrun(lab: Any, run_commands: Run, tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
comm = hk.init(backends=["mpi", "gloo"], timeout=60)
assert (comm.size, comm.num_hosts, comm.local_size) == (4, 2, 2)
x = np.full(3, comm.rank, np.float32)
for backend in comm.backends:
    comm.all_reduce(x, "max", backend=backend)
assert (x == 3).all()
print("fine", flush=True)
comm.finalize()
""",
    )
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nnodes=2", "--nproc-per-node=2"]
    torchrun += [f"--master-addr={lab.hosts[0].address}", "--master-port=29400"]
    commands = [host.command([*torchrun, f"--node-rank={host.number}", program]) for host in lab.hosts]
    assert check(run_commands(commands)).count("fine") == 4


def test_link_that_fails(lab: Any, run_commands: Run, tmp_path: Path) -> None:
    """Nobody dies, and nothing answers any more: both hosts notice within seconds, and nothing hangs."""
    program = script(
        tmp_path,
        """
import os, subprocess, time
comm = hk.init(backends=["gloo"], timeout=60)
x = np.ones(1 << 18, np.float32)
comm.all_reduce(x)
comm.barrier()
if comm.rank == 0:
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
try:
    for _ in range(1000):
        comm.all_reduce(x)
except hk.HocketError as error:
    print("noticed", type(error).__name__, flush=True)
""",
    )
    runs = run_commands(lab.launchers([program], 1))
    output = "".join(run.stdout for run in runs)
    assert len(re.findall("noticed (PeerFailure|Aborted)", output)) == 2, output


def test_table_for_two_hosts(lab: Any, run_commands: Run, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    tune = [sys.executable, "-m", "hocket.cli", "tune", "run", "-n", "1", "--nnodes", "2", "--json"]
    tune += ["--master-addr", lab.hosts[0].address, "--master-port", "29500"]
    tune += ["--ops", "all_reduce,barrier", "--sizes", "64KiB,1MiB", "--beside-others"]
    outputs = run_commands([host.command([*tune, "--node-rank", str(host.number)]) for host in lab.hosts], env=env)
    check(outputs)
    table = json.loads(outputs[0].stdout.splitlines()[-1])
    assert table["path"] == str(tmp_path / "hocket" / "table-2-hosts.json")
    program = script(
        tmp_path,
        """
import torch
from hocket.comm.policy import join_carrier
comm = hk.init(timeout=60)
explained = comm.explain("all_reduce", 1 << 20)
comm.all_reduce(np.ones(1 << 18, np.float32))
record = comm.records()[-1]
assert join_carrier(record.backend, record.algorithm) == explained.chosen, (record, explained)
assert all(each.source == "measured at 1048576 B" for each in explained.candidates), explained
print("as measured", flush=True)
comm.finalize()
""",
    )
    assert check(run_commands(lab.launchers([program], 1), env=env)).count("as measured") == 2
    explain = [sys.executable, "-m", "hocket.cli", "explain", "all_reduce", "1MiB", "--hosts", "2"]
    assert "measured at 1048576 B" in check(run_commands([explain], env=env))


def test_nothing_is_left_behind(lab_module: ModuleType) -> None:
    with lab_module.Lab(10.0) as lab:
        keepers = [host.keeper for host in lab.hosts]
        program = ["sh", "-c", "echo here; exec sleep 1000"]
        sleeper = subprocess.Popen(lab.hosts[1].command(program), stdout=subprocess.PIPE, text=True)
        assert sleeper.stdout is not None
        with sleeper.stdout as output:
            assert output.readline() == "here\n"  # it is on that host, not still on its way
    assert sleeper.wait(timeout=20) == -9
    assert all(keeper.poll() is not None for keeper in keepers)


def test_wrong_arguments(lab_module: ModuleType, run_commands: Run) -> None:
    lab_script = [sys.executable, lab_module.__file__]
    for arguments in (["run", "--rate", "0", "x.py"], ["run", "-n", "0", "x.py"], ["run"], ["fly"]):
        (done,) = run_commands([[*lab_script, *arguments]])
        assert done.returncode == 2 and "Traceback" not in done.stdout, done.stdout
