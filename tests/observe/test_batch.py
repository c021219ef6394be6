"""Tasks of Slurm and PBS by their environment, and jobs as the commands of these systems show them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hocket.errors import RecorderError
from hocket.observe import BatchTask, QueuedJob, open_run, queued_job, record_run
from hocket.observe.batch import parse_qstat, parse_scontrol, task_in

from ..naming import raises
from ..program import hocket

pytestmark = pytest.mark.timeout(60)

TASK = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "16", "SLURM_JOB_NODELIST": "node[1-2]",
}  # fmt: skip
# Of slurm 22.05, in one line.
SCONTROL = (
    "JobId=4711 JobName=train me UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=0 "
    "Reboot=0 ExitCode=0:0 RunTime=00:00:05 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime=2026-11-28T18:43:12 "
    "StartTime=2026-11-28T18:43:12 Partition=debug AllocNode:Sid=vm:7609 ReqNodeList=(null) ExcNodeList=(null) "
    "NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=16 NumTasks=16 TRES=cpu=16,node=2,billing=16 Power=\n"
)
# Of OpenPBS (qstat -f -F json).
QSTAT = {
    "timestamp": 1700000000, "pbs_version": "22.05.11", "pbs_server": "head",
    "Jobs": {"12.head": {
        "Job_Name": "train", "Job_Owner": "u@head", "job_state": "R", "queue": "workq", "exec_host": "n1/0*4+n2/0*4",
        "stime": "Tue Nov 14 22:13:20 2023", "Resource_List": {"ncpus": 8, "walltime": "01:00:00"},
    }},
}  # fmt: skip


def test_tasks_of_slurm() -> None:
    assert task_in(TASK) == BatchTask("Slurm", "4711", "0", 3, 8, "node[1-2]")
    assert task_in({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "x" * 9}) == BatchTask(
        "Slurm", "4711", None, None, None, None
    )
    assert task_in({"SLURM_JOB_ID": "", "PATH": "/bin"}) is None


def test_tasks_of_pbs(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    found = task_in({"PBS_JOBID": "12.head", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert found == BatchTask("PBS", "12.head", None, None, None, "n1,n2")
    assert task_in({"PBS_JOBID": "12.head", "PBS_NODEFILE": "/none"}) == BatchTask(
        "PBS", "12.head", None, None, None, None
    )


def test_jobs_of_slurm() -> None:
    assert parse_scontrol(SCONTROL, "4711") == QueuedJob(
        "train", "RUNNING", "debug", "node[1-2]", "2026-11-28T18:43:12", "1-00:00:00"
    )
    for text in ("", "slurm_load_jobs error: Invalid job id specified", SCONTROL.replace("4711", "4712")):
        with raises(RecorderError, names=("scontrol", "4711")):
            parse_scontrol(text, "4711")


def test_jobs_of_pbs() -> None:
    assert parse_qstat(json.dumps(QSTAT), "12.head") == QueuedJob(
        "train", "R", "workq", "n1/0*4+n2/0*4", "Tue Nov 14 22:13:20 2023", "01:00:00"
    )
    for content in ({}, [], {"Jobs": {}}, {"Jobs": {"12.head": None}}, {"Jobs": {"12.head": {"Resource_List": 3}}}):
        with raises(RecorderError, names=("qstat", "12.head")):
            parse_qstat(json.dumps(content), "12.head")


@pytest.mark.parametrize(("script", "words"), [
    (None, ("scontrol",)), ("exit 3", ("scontrol", "3")), ("echo Invalid job id >&2; exit 1", ("scontrol", "1")),
    ("exec sleep 60", ("scontrol", "5")), ("yes", ("scontrol", str(1 << 20))), ("echo nothing", ("scontrol", "4711")),
])  # fmt: skip
def test_a_queue_that_does_not_answer(
    script: str | None, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    with raises(RecorderError, names=words):
        queued_job(BatchTask("Slurm", "4711", None, None, None, None))


def test_a_recorded_run_and_doctor_say_the_job(tmp_path: Path) -> None:
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    command.chmod(0o700)
    (tmp_path / "answer").write_text(SCONTROL)
    environment = {**os.environ, **TASK, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("RANK", None)
    folder = tmp_path / "run"
    program = ["cat", "/etc/hostname"]  # it has ended before anybody looks at it
    done = hocket("observe", "run", "--output", str(folder), "--", *program, environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = open_run(folder)
    (process,) = run.processes
    assert run.description.tasks == {process.name: task_in(TASK)}
    assert run.description.queued == {"4711": parse_scontrol(SCONTROL, "4711")}
    assert (process.snapshot.owner.rank, process.snapshot.owner.world_size) == (3, 8)
    found = json.loads(hocket("observe", "doctor", "--json", environment=environment).stdout)
    sources = {each["name"]: each for each in found}
    assert sources["job"]["is_available"] and "4711" in sources["job"]["reason"]
    assert sources["queue"]["is_available"] and "RUNNING" in sources["queue"]["reason"]


def test_a_damaged_task_in_a_run(tmp_path: Path) -> None:
    record_run(["true"], tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    task = {"system": "Slurm", "job": "1", "step": None, "rank": 0, "num_tasks": 1, "nodes": None}
    path.write_text(json.dumps(content | {"tasks": {"p": task}}))
    assert open_run(tmp_path / "run").description.tasks["p"].rank == 0
    for wrong in ({**task, "rank": "0"}, {**task, "system": None}, {"job": "1"}, [], None):
        path.write_text(json.dumps(content | {"tasks": {"p": wrong}}))
        with raises(RecorderError, names=(str(path),)):
            open_run(tmp_path / "run")
