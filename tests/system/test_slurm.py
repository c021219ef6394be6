"""`hocket observe run` around and inside of srun, on a Slurm of one host that these tests start for themselves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hocket.observe import open_run
from hocket.observe.processes import descendants_of

from ..load import scaled

pytestmark = pytest.mark.timeout(240)
_PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "scontrol": "slurm-client"}

# Without munge and accounting; both daemons stay in the foreground, and all that they write is in one folder.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""

_DDP = """
import os, sys
import torch, torch.distributed as dist
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
for _ in range(5):
    dist.all_reduce(torch.ones(100))
dist.barrier()
os._exit(0)  # gloo may abort where its threads outlive the group
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Return the environment in which srun and scontrol use the cluster."""
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    assert not missing, f"install the packages {' '.join(missing)}"
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    text = _CONFIGURATION.format(host=socket.gethostname().split(".")[0], ports=ports, folder=folder, user="root")
    (folder / "slurm.conf").write_text(text)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    daemons = [
        subprocess.Popen([name, "-D"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        deadline = time.monotonic() + scaled(60)
        while "idle" not in _state(environment):
            assert time.monotonic() < deadline, (folder / "slurmd.log").read_text()
            time.sleep(0.2)
        yield environment
    finally:
        for daemon in daemons:
            for pid in descendants_of(daemon.pid)[1:]:
                subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
            daemon.kill()
            daemon.wait()


def _state(environment: Mapping[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=scaled(20))
    return done.stdout


def _run(command: list[str], environment: Mapping[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=scaled(100), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _observe(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hocket.cli", "observe", *arguments]


def test_tasks_that_slurmd_starts_are_in_the_run(slurm: Mapping[str, str], tmp_path: Path) -> None:
    program = [sys.executable, "-c", _DDP, str(tmp_path / "meeting")]
    _run(_observe("run", "--output", "run", "--", "srun", "-n", "2", *program), slurm, tmp_path)
    run = open_run(tmp_path / "run")
    tasks = [each for each in run.processes if each.snapshot.owner.rank is not None]
    assert [(each.snapshot.owner.rank, each.snapshot.owner.world_size) for each in tasks] == [(0, 2), (1, 2)]
    for rank, process in enumerate(tasks):
        assert len(process.events["foreign"]) >= 6  # five sums, and the barrier
        task = run.description.tasks[process.name]
        assert (task.system, task.step, task.rank, task.num_tasks) == ("Slurm", "0", rank, 2)
        queued = run.description.queued[task.job]
        assert queued.queue == "debug" and queued.state in ("RUNNING", "COMPLETING", "COMPLETED")
        assert len(process.series) >= 1


def test_each_task_records_itself(slurm: Mapping[str, str], tmp_path: Path) -> None:
    program = [sys.executable, "-c", _DDP, str(tmp_path / "meeting")]
    _run(["srun", "-n", "2", *_observe("run", "--", *program)], slurm, tmp_path)
    folders = sorted(tmp_path.glob("hocket-run-*"), key=lambda folder: folder.name[-1])
    assert [folder.name[-7:] for folder in folders] == ["-task-0", "-task-1"]
    for rank, folder in enumerate(folders):
        (process,) = open_run(folder).processes
        assert process.snapshot.owner.rank == rank and len(process.events["foreign"]) >= 6


def test_doctor_in_a_task(slurm: Mapping[str, str], tmp_path: Path) -> None:
    command = ["srun", "-n", "1", *_observe("doctor")]
    done = subprocess.run(command, env=slurm, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(100))
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert "Slurm" in lines["job"] and "RUNNING" in lines["queue"]
