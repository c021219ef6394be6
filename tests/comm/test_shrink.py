"""The survivors of a failure continue."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

import hocket as hk

from ..naming import assert_names, raises
from ..program import hocket
from ..tier import full, sample

pytestmark = pytest.mark.timeout(120)
_OTHERS = [("kill", "tcp,self"), ("leave", "all"), ("leave", "tcp,self")]

# Ranks sum ones step by step; some are killed or leave meanwhile. The others shrink, agree on the last step that all of
# them have completed, and continue.
PROGRAM = r"""
import json, os, signal, sys
import numpy as np
import hocket as hk

plan = json.loads(sys.argv[1])
world = comm = hk.init(backends=plan["backends"], timeout=30)
own, step = world.rank, 0
dies_at = plan["dies_at"].get(str(own))

def meet_again(comm, step):
    while True:
        try:
            comm = comm.shrink()
            reached = np.array([step])
            comm.all_reduce(reached, "min")
            return comm, int(reached[0])
        except (hk.PeerFailure, hk.Aborted):
            continue

while step < plan["steps"]:
    if step == dies_at:
        if plan["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        comm.finalize()
        sys.exit(0)
    try:
        x = np.ones(plan["count"])
        comm.all_reduce(x)
        assert (x == comm.size).all()
        step += 1
    except (hk.PeerFailure, hk.Aborted):
        comm, step = meet_again(comm, step)
members = comm.all_gather_object(own)
assert members == sorted(members) and members[comm.rank] == own
left_out = comm.all_gather_object(sorted(comm.backends.left_out))
assert all(each == left_out[0] for each in left_out)
os.write(1, f"left {members} {sorted(comm.backends)} -> {left_out[0]}\n".encode())
comm.finalize()
try:
    world.barrier()
except hk.InvalidState:
    pass  # the first one was finalized with the last
else:
    raise SystemExit("the world is still open")
"""


def _wait_for_who_has_left(comm: hk.Communicator, mark: str) -> list[int]:
    """Rank 0, which would allocate the group's memory, never calls; rank 1 leaves; rank 2 waits for both."""
    if comm.rank == 0:
        while not Path(mark).exists():
            time.sleep(0.01)
    if comm.rank != 2:
        return []
    try:
        comm.group([0, 1, 2])
    except hk.PeerFailure as error:
        return list(error.ranks)
    finally:
        Path(mark).touch()
    return []


@pytest.mark.own_ranks
def test_a_group_is_given_up_where_any_member_has_left(tmp_path: Path) -> None:
    assert hk.spawn(_wait_for_who_has_left, 3, str(tmp_path / "mark"), timeout=20) == [[], [], [1]]


def _run(tmp_path: Path, size: int, dies_at: dict[int, int], how: str, backends: list[str], count: int) -> list[str]:
    plan = {"dies_at": dies_at, "how": how, "backends": backends, "count": count, "steps": 30}
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["run", "-n", str(size), "--keep-going", str(tmp_path / "program.py"), json.dumps(plan)]
    environment = os.environ | {"HOCKET_RECORD_DIR": str(tmp_path / "records")}
    job = hocket(*command, environment=environment, timeout_s=100)
    assert job.returncode == 0 and job.stdout, (
        job.stdout + job.stderr
    )  # with --keep-going, one rank that has left is enough for exit code 0
    return job.stdout.splitlines()


@pytest.mark.parametrize("seed", sample(range(6), 3))
def test_survivors_of_random_deaths(tmp_path: Path, seed: int) -> None:
    plan = random.Random(seed)
    size = plan.randrange(2, 6)
    victims = plan.sample(range(size), plan.randrange(1, size))
    dies_at = {victim: plan.choice([0, 3, plan.randrange(30)]) for victim in victims}
    how, count = plan.choice(["kill", "leave"]), plan.choice([1, 1000, 300_000])
    lines = _run(tmp_path, size, dies_at, how, ["shm"], count)
    left = [rank for rank in range(size) if rank not in dies_at]
    assert lines == [f"left {left} ['shm'] -> ['gloo', 'mpi']"] * len(left)


@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_libraries_that_go_on(tmp_path: Path, victim: int) -> None:
    lines = _run(tmp_path, 3, {victim: 5}, "kill", ["shm", "gloo", "mpi", "ucx"], 1000)
    left = [rank for rank in range(3) if rank != victim]
    assert lines == [f"left {left} {['gloo', 'shm', 'ucx']} -> {['mpi']}"] * 2


@pytest.mark.parametrize(
    ("how", "transports"),
    [("kill", "all"), *(pytest.param(*each, marks=full) for each in _OTHERS)],
)
def test_ucx_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, transports: str) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    for count in (1, 300_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        lines = _run(folder, 4, {0: 3, 2: 11}, how, ["ucx"], count)
        assert lines == ["left [1, 3] ['ucx'] -> ['gloo', 'mpi']"] * 2


def _exclude(comm: hk.Communicator) -> list[int]:
    if comm.rank == 1:
        time.sleep(1.5)  # for the others, this rank hangs
        return []
    with pytest.raises(hk.CommTimeout):
        comm.all_reduce(np.ones(3), timeout=0.3)
    rest = comm.shrink(exclude=[1])
    x = np.array([comm.rank])
    out = np.empty((2, 1), x.dtype)
    rest.all_gather(out, x)
    # also without a death, and once more
    again = rest.shrink().shrink()
    again.barrier()
    assert again.size == 2 and again.rank == rest.rank
    return [int(each) for each in out[:, 0]]


def test_a_rank_that_hangs_can_be_excluded() -> None:
    assert hk.spawn(_exclude, 3, timeout=60) == [[0, 2], [], [0, 2]]


def _alone_in_it(comm: hk.Communicator) -> str:
    if comm.rank == 1:
        time.sleep(1.0)
        return ""
    with raises(hk.InvalidArgument, names="rank 0"):
        comm.shrink(exclude=[0])
    with raises(hk.InvalidArgument, names=("exclude", "rank 2", "0", "1")):
        comm.shrink(exclude=[2])
    with pytest.raises(hk.CommTimeout) as raised:
        comm.shrink(timeout=0.3)
    return str(raised.value)


def test_one_that_is_alive_and_does_not_come_is_named() -> None:
    assert_names(hk.spawn(_alone_in_it, 2, timeout=60)[0], "rank 0", "rank 1")


def test_a_world_of_one() -> None:
    with hk.init(backends="shm") as comm:
        rest = comm.shrink()
        x = np.ones(3)
        rest.all_reduce(x)
        assert rest.size == 1 and (x == 1).all()
        rest.finalize()
        with raises(hk.InvalidState, names=("world", "finalized")):
            comm.shrink()
