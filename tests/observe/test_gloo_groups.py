"""Process groups of torch's gloo that come and go, messages that nobody waits for, and a receive from any rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.observe import JobWatcher, SavedProcess, find_job, open_run
from hocket.observe.run import recording_environment
from hocket.trace import EVENT_STATES
from hocket.trace.record import END_UNKNOWN

from ..load import scaled
from ..tier import full
from .mpi_jobs import kind_name

pytestmark = [pytest.mark.timeout(180), full]

_PROLOGUE = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
folder = sys.argv[1]

def begin(number):
    store = dist.FileStore(f"{folder}/store-{number}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
"""


def _start(program: str, folder: Path, environment: dict[str, str]) -> list[subprocess.Popen[str]]:
    path = folder / "program.py"
    path.write_text(_PROLOGUE + program)
    return [
        subprocess.Popen(
            [sys.executable, str(path), str(folder)],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


_GROUPS = """
for number in range(6):
    begin(number)
    for _ in range(3):
        dist.all_reduce(torch.ones(10 + number))
    dist.destroy_process_group()
begin("last")
if rank == 0:
    for turn in range(4):
        works = [dist.isend(torch.ones(10 * turn + count), 1) for count in range(1, 11)]
        dist.barrier()  # nobody waits, but they have arrived
        del works
else:
    for count in range(1, 41):
        dist.recv(torch.ones(count), 0)
        if count % 10 == 0:
            dist.barrier()
if os.fork() == 0:  # a child begins with nothing: neither the parent's groups nor its recorder
    try:
        store = dist.FileStore(f"{folder}/store-child-{rank}", 1)
        group = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=60))
        group.allreduce([torch.ones(7)]).wait()
        os._exit(0)
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
assert os.wait()[1] == 0
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[SavedProcess]:
    """Ranks 0 and 1, and the children that each has forked."""
    folder = tmp_path_factory.mktemp("groups")
    (folder / "program.py").write_text(_PROLOGUE + _GROUPS)
    shell = " & ".join(f"RANK={rank} WORLD_SIZE=2 {sys.executable} program.py . || exit 1" for rank in range(2))
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--layers", "comm", "--output", "run", "--"]
    done = subprocess.run(
        [*command, "sh", "-c", f"{shell}; wait"], cwd=folder, capture_output=True, text=True, timeout=scaled(150)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [each for each in open_run(folder / "run").processes if len(each.events["foreign"])]


def test_each_group_has_its_own_numbers(processes: list[SavedProcess]) -> None:
    parents = [each for each in processes if len(each.events["foreign"]) > 10]
    assert [each.snapshot.owner.rank for each in parents] == [0, 1]
    for process in parents:
        sums = [each for each in process.events["foreign"] if kind_name(int(each["kind"])) == "all_reduce"]
        names = process.snapshot.names
        labels = [names["communicator", int(each["comm"]), 0] for each in sums]
        # In the place of a group that was destroyed may be another one.
        assert len(set(labels)) == 6 and [int(each["seq"]) for each in sums] == [1, 2, 3] * 6
        assert [int(each["nbytes"]) // 4 for each in sums] == [10 + number for number in range(6) for _ in range(3)]
        assert {process.snapshot.members[int(each["comm"])] for each in sums} == {(0, 1)}
    shared = [{each.text for each in process.snapshot.communicators.values()} for process in parents]
    assert shared[0] == shared[1] and len(shared[0]) == 7


def test_messages_that_nobody_waits_for(processes: list[SavedProcess]) -> None:
    (sender,) = [each for each in processes if each.snapshot.owner.rank == 0 and len(each.events["foreign"]) > 10]
    sent = [each for each in sender.events["foreign"] if kind_name(int(each["kind"])) == "send"]
    assert [int(each["nbytes"]) // 4 for each in sent] == list(range(1, 41))
    states = [EVENT_STATES[each["state"]] for each in sent]
    # torch says nothing of their end; that it was certain is known when their memory is used again.
    assert states.count("completed") > 0 and set(states) <= {"issued", "completed"}
    assert all(each["flags"] & END_UNKNOWN for each in sent if EVENT_STATES[each["state"]] == "completed")


def test_forked_children_begin_anew(processes: list[SavedProcess]) -> None:
    children = [each for each in processes if len(each.events["foreign"]) == 1]
    assert len(children) == 2
    for process in children:
        (event,) = process.events["foreign"]
        assert (kind_name(int(event["kind"])), int(event["nbytes"]), int(event["seq"])) == ("all_reduce", 28, 1)
        assert process.snapshot.names["communicator", int(event["comm"]), 0].startswith("gloo group")


_ANY = """
begin(0)
dist.barrier()
if rank == 0:
    for _ in range(5):
        dist.send(torch.ones(3), 1)
    print("ready", flush=True)
    time.sleep(60)
else:
    for _ in range(5):
        dist.recv(torch.ones(3))
    print("ready", flush=True)
    dist.recv(torch.ones(3))
"""


def test_a_receive_from_any_rank_is_no_collective(tmp_path: Path) -> None:
    jobs = _start(_ANY, tmp_path, recording_environment(os.environ, tmp_path, ["comm"]))
    try:
        for process in jobs:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        watcher = JobWatcher(lambda: [place for each in jobs for place in find_job(each.pid)])
        view = watcher.look()
        while not (view.ranks[1].doing and view.ranks[1].doing.number == 6):
            view = watcher.look()  # the test has a deadline
        first, second = view.ranks
        assert second.doing is not None and first.doing is None
        assert (second.doing.name, second.doing.peer, second.doing.nbytes) == ("recv", None, 12)
        assert second.waits_for == () and first.activity.num_operations == 6
        assert second.activity.latest == first.activity.latest
    finally:
        for process in jobs:
            process.kill()
            process.communicate(timeout=scaled(20))
