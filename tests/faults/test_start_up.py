"""hk.init with ranks that do not come, do not agree, or do not belong there."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from ..load import scaled
from ..naming import assert_names
from ..tier import is_full

pytestmark = pytest.mark.timeout(60)

INIT = """
import hocket.boot.environment as environment
note("name", name=environment.meeting_name(environment.read_world()))
comms = []
error = caught(lambda: comms.append(hk.init(timeout=float(sys.argv[1]))))
if error is not None:
    raise error
(comm,) = comms
x = np.full(3, 1.0)
comm.all_reduce(x)
assert (x == SIZE).all()
"""


# Of the two processes with rank 1 the first kills itself when it is in the meeting; then the others come.
REPLACED = (
    """
def num_sockets():
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return count

if RANK == 1:
    try:
        os.mkdir("first")
    except FileExistsError:
        await_told("met")
        wait_until(lambda: is_struck(int(open("told-met").read())))
    else:
        def die_in_the_meeting():
            wait_until(lambda: num_sockets() > before)
            tell("met")
            os.kill(os.getpid(), signal.SIGKILL)
        before = num_sockets()
        threading.Thread(target=die_in_the_meeting).start()
elif RANK == 2:
    await_told("met")
"""
    + INIT
)


def errors_by_type(job: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for error in job.notes("error"):
        found.setdefault(error["type"], []).append(error)
    return found


@pytest.mark.parametrize("present", [(0, 2, 3), (1, 2), (0,)])
def test_missing_ranks_are_named(jobs: Any, present: tuple[int, ...]) -> None:
    missing = [rank for rank in range(4) if rank not in present]
    limit_s = scaled(2)  # within it those that are there have to arrive
    job = jobs.start_ranks(INIT, [(rank, 4) for rank in present], f"{limit_s:g}").finish()
    assert job.return_codes == [1] * len(present)
    errors = job.notes("error")
    assert {error["type"] for error in errors} == {"CommTimeout"}
    # Without rank 0 nobody knows who else is missing.
    assert all(error["ranks"] == (missing if 0 in present else [0]) for error in errors)
    assert all("start-up" in error["text"] for error in errors)
    first_s = min(error["entered_s"] for error in errors)  # who came later may learn it from those who came first
    assert all(error["time_s"] - first_s > limit_s - 0.1 for error in errors)
    assert all(error["time_s"] - error["entered_s"] < limit_s + scaled(3) for error in errors)


def test_two_processes_with_one_rank(jobs: Any) -> None:
    job = jobs.start_ranks(INIT, [(0, 3), (1, 3), (1, 3)], "20").finish()
    errors = errors_by_type(job)
    assert list(errors) == ["BootstrapMismatch"]
    assert len(errors["BootstrapMismatch"]) == 3
    for error in errors["BootstrapMismatch"]:
        assert_names(error["text"], "rank 1")


def test_two_processes_with_rank_0(jobs: Any) -> None:
    job = jobs.start_ranks(INIT, [(0, 2), (0, 2)], "2").finish()
    errors = errors_by_type(job)
    assert sorted(errors) == ["BootstrapMismatch", "CommTimeout"]
    assert_names(errors["BootstrapMismatch"][0]["text"], "0", "MASTER_ADDR", "MASTER_PORT", "HOCKET_JOB")
    assert errors["CommTimeout"][0]["ranks"] == [1]


def test_different_world_sizes(jobs: Any) -> None:
    job = jobs.start_ranks(INIT, [(0, 2), (1, 3)], "20").finish()
    errors = job.notes("error")
    assert [error["type"] for error in errors] == ["BootstrapMismatch"] * 2
    assert all("expects 2 ranks" in error["text"] and "expects 3" in error["text"] for error in errors)


def connect(name: str) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        foreign = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            foreign.connect(f"\0{name}")
        except OSError:
            foreign.close()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return foreign


# The size of a greeting, so that its content decides.
GREETING_BYTES = 32


@pytest.mark.parametrize(
    "words",
    [[], [b"x"], [b"GET / HTTP/1.1\r\n\r\n" * 100], [hashlib.sha256(b"noise").digest()[:GREETING_BYTES]] * 3, [b""]],
    ids=["silent", "short", "long", "noise", "empty"],
)
@pytest.mark.parametrize("hangs", [True, False])
def test_foreign_process_at_the_meeting(jobs: Any, words: list[bytes], hangs: bool) -> None:
    # Rank 1 comes only when the foreign process has said its words.
    script = "if RANK == 1: await_told('foreign')\n" + INIT
    job = jobs.start_ranks(script, [(0, 2), (1, 2)], "20")
    job.wait_for_note("name")
    foreign = connect(job.notes("name")[0]["name"])
    for word in words:
        try:
            foreign.send(word)
        except ConnectionError:
            break  # it was shown the door: a reset, where rank 0 closed with a word of it unread
    if not hangs:
        foreign.close()
    (job.folder / "told-foreign").touch()
    job.finish()
    foreign.close()
    assert job.return_codes == [0, 0], job.stderr


def test_foreign_process_in_the_place_of_rank_0(jobs: Any) -> None:
    script = INIT.replace("error = caught", "await_told('listening')\nerror = caught")
    job = jobs.start_ranks(script, [(1, 2)], "2")
    job.wait_for_note("name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:
        foreign.bind(f"\0{job.notes('name')[0]['name']}")
        foreign.listen()
        (job.folder / "told-listening").touch()
        job.finish()
    assert [(error["type"], error["ranks"]) for error in job.notes("error")] == [("CommTimeout", [0])]


def test_rank_that_dies_in_the_meeting_may_be_replaced(jobs: Any) -> None:
    job = jobs.start_ranks(REPLACED, [(0, 3), (1, 3), (1, 3), (2, 3)], "20").finish()
    assert sorted(job.return_codes) == [-9, 0, 0, 0], job.stderr


def test_interrupt_while_ranks_are_missing(run_job: Callable[..., Any]) -> None:
    script = """
if RANK == 0:
    def interrupt():
        wait_until(is_meeting)
        note("sent")
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    assert isinstance(caught(hk.init, timeout=30), KeyboardInterrupt)
    tell("interrupted")
await_told("interrupted")
comm = hk.init(timeout=30)  # and nothing is left of the first attempt
comm.barrier()
"""
    job = run_job(script, 2)
    assert job.return_code == 0, job.stderr
    assert job.notes("error")[0]["time_s"] - job.notes("sent")[0]["time_s"] < 2


# Rank 0 answers and closes at once, and the kernel may tell the other of the end before it tells of the answer: about
# once in 10,000 meetings on two processors.
OFTEN = """
from hocket import _native

for generation in range(int(sys.argv[1])):
    _native.Host(f"often-{os.environ['HOCKET_JOB']}-{generation}", RANK, SIZE, 10.0)
"""


@pytest.mark.timeout(120)
def test_many_meetings(run_job: Callable[..., Any]) -> None:
    job = run_job(OFTEN, 2, "200000" if os.environ.get("HOCKET_SOAK") else "20000" if is_full() else "4000")
    assert job.return_code == 0, job.stderr
