"""Members that die or leave, and communicators that continue without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..naming import assert_names
from .summary_lines import ranks_of

pytestmark = pytest.mark.timeout(60)

WITHIN_S = 2.0


def run_well(run_job: Callable[..., Any], script: str, num_ranks: int, *args: str) -> Any:
    job = run_job(script, num_ranks, *args)
    assert job.return_code == 0, job.stderr
    return job


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_groups_without_the_dead_rank_continue(run_job: Callable[..., Any], how: str, progress: str) -> None:
    script = """
comm = hk.init(timeout=30, progress=sys.argv[2])
halves = comm.split(RANK // 2)
group = comm.group([3, 0]) if RANK in (0, 3) else None
copy = comm.dup()
if RANK == 2:
    if sys.argv[1] == "kill":
        note("failure")
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)
error = caught(comm.all_reduce, np.ones(3))
assert isinstance(error, hk.PeerFailure) and error.ranks == (2,), error
assert isinstance(caught(comm.barrier), hk.PeerFailure)
assert isinstance(caught(copy.barrier), hk.PeerFailure)
for n in (3, 5000, 300_000):
    for part in (halves if RANK < 2 else None, group):
        if part is not None:
            x = np.ones(n)
            part.all_reduce(x)
            assert (x == 2).all()
if RANK == 3:
    assert isinstance(caught(halves.recv, np.ones(3), 0), hk.PeerFailure)
if RANK < 2:
    assert halves.split(0).size == 2  # new communicators work, too
    set_flag(f"done-{RANK}")
"""
    job = run_job(script, 4, how, progress)
    assert job.return_code == (137 if how == "kill" else 0), job.stderr
    assert job.stderr.count("\n") == (2 if how == "kill" else 0), (
        job.stderr
    )  # the killed rank, and the path of the records
    assert sorted(job.records()) == [0, 1, 3]
    if how == "kill":
        first = min(error["time_s"] for error in job.notes("error"))
        assert first - job.notes("failure")[0]["time_s"] < WITHIN_S


def test_member_that_finalizes_early(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
x = np.full(9, RANK + 1.0)
if RANK == 2:
    comm.send(x, 0)  # is received after its sender has left
    comm.finalize()
    set_flag("left")
    await_flags("over-0", "over-1")
    sys.exit(0)
await_flags("left")
# Ranks that do not wait for it are not disturbed.
if RANK == 0:
    comm.recv(x, 2)
    assert (x == 3).all()
    comm.send(np.ones(1_000_000), 1)
else:
    y = np.zeros(1_000_000)
    comm.recv(y, 0)
    assert y.sum() == 1_000_000
set_flag(f"well-{RANK}")
await_flags("well-0", "well-1")
if RANK == 0:
    error = caught(comm.recv, x, 2)
else:
    error = caught(comm.barrier)
assert isinstance(error, hk.PeerFailure) and error.ranks == (2,) and "left" in str(error), error
set_flag(f"over-{RANK}")
"""
    run_well(run_job, script, 3)


def test_group_with_a_member_that_has_left(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 1:
    comm.finalize()
    set_flag("left")
    await_flags("over-0", "over-2")
    sys.exit(0)
await_flags("left")
for members in ([1, 0, 2], [0, 1, 2]):
    error = caught(comm.group, members)
    assert isinstance(error, hk.PeerFailure) and error.ranks == (members.index(1),), error
group = comm.group([2, 0])
group.barrier()
set_flag(f"over-{RANK}")
"""
    run_well(run_job, script, 3)


def test_completed_operations_of_a_dead_rank_are_delivered(run_job: Callable[..., Any]) -> None:
    script = """
start_together()
comm = hk.init(timeout=30, progress="caller")
if RANK == 1:
    comm.all_reduce(np.full(4, 5.0), async_op=True)
    comm.isend(np.full(4, 6.0), 0)
    os.kill(os.getpid(), signal.SIGKILL)
wait_until(lambda: is_stopped_or_dead(pid_of(1)))
x, y = np.ones(4), np.zeros(4)
comm.recv(y, 1)
comm.all_reduce(x)
assert (x == 6).all() and (y == 6).all()
error = caught(comm.barrier)
assert isinstance(error, hk.PeerFailure) and error.ranks == (1,), error
"""
    job = run_job(script, 2)
    assert job.return_code == 137
    assert [error["type"] for error in job.notes("error")] == ["PeerFailure"], job.stderr


def test_one_of_eight_ranks_is_killed(run_job: Callable[..., Any]) -> None:
    script = """
start_together()
comm = hk.init(timeout=60)
comm.barrier()
if RANK == 5:
    work = comm.all_reduce(np.ones(2_000_000), async_op=True)
    note("failure")
    os.kill(os.getpid(), signal.SIGKILL)
error = caught(comm.all_reduce, np.ones(2_000_000))
raise error
"""
    job = run_job(script, 8)
    assert job.return_code == 137
    errors = job.notes("error")
    assert [error["type"] for error in errors] == ["PeerFailure"] * 7
    assert all(error["ranks"] == [5] for error in errors)
    failure_s = job.notes("failure")[0]["time_s"]
    assert all(error["time_s"] - max(failure_s, error["entered_s"]) < WITHIN_S for error in errors)
    assert job.ended_s - failure_s < 8
    lines = job.stderr.splitlines()
    assert lines[0] == "rank 5 was killed by SIGKILL"
    assert sorted(rank for line in lines[1:] for rank in ranks_of(line)) == [0, 1, 2, 3, 4, 6, 7]


def test_polling_and_a_progress_thread_detect_a_death(run_job: Callable[..., Any]) -> None:
    script = """
start_together()
comm = hk.init(timeout=30, progress="thread" if RANK == 0 else "caller")
comm.barrier()
if RANK == 2:
    note("failure")
    os.kill(os.getpid(), signal.SIGKILL)
work = comm.all_reduce(np.ones(4), async_op=True)
if RANK == 0:
    wait_until(lambda: work.done)  # makes no progress by itself
    note("seen")
    assert isinstance(work.exception(), hk.PeerFailure)
assert isinstance(caught(wait_until, work.test), hk.PeerFailure)
"""
    job = run_job(script, 3)
    assert job.return_code == 137, job.stderr
    failure_s = job.notes("failure")[0]["time_s"]
    assert [error["type"] for error in job.notes("error")] == ["PeerFailure"] * 2
    assert all(each["time_s"] - failure_s < WITHIN_S for each in [*job.notes("error"), *job.notes("seen")])


def test_exception_in_one_rank_while_others_are_in_a_collective(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 1:
    await_flags("there-0", "there-2")
    raise KeyError("the cause")
set_flag(f"there-{RANK}")
comm.all_reduce(np.ones(1_000_000))
"""
    job = run_job(script, 3)
    lines = job.stderr.splitlines()
    assert lines[:2] == ["rank 1 failed:", "Traceback (most recent call last):"]
    others = [line for line in lines[2:] if ranks_of(line)]
    assert lines[-2 - len(others)] == "KeyError: 'the cause'"
    assert all(": PeerFailure: rank 1 " in line for line in others)
    assert sorted(rank for line in others for rank in ranks_of(line)) == [0, 2]
    assert lines[-1].startswith("records of the last operations: ")
    assert sorted(job.records()) == [0, 2]


def test_exception_with_an_operation_in_flight_does_not_wait_for_it(run_job: Callable[..., Any]) -> None:
    script = """
comm = hk.init(timeout=30)
if RANK == 0:
    work = comm.irecv(np.zeros(3), 1)
    note("failure")
    raise ValueError("the cause")
raise caught(comm.barrier)
"""
    job = run_job(script, 2)
    first, second, *_ = job.stderr.splitlines()
    assert_names(first, "rank 0")
    assert second.startswith("Traceback")
    assert job.notes("error")[0]["type"] in ("Aborted", "PeerFailure")
    assert job.notes("error")[0]["time_s"] - job.notes("failure")[0]["time_s"] < WITHIN_S
