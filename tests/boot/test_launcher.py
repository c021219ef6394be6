"""Real jobs: how they end when ranks fail, hang, are stopped or killed, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.boot.launcher import run_job
from hocket.errors import InvalidArgument, LaunchError

from ..naming import NO_SUCH_FILE, assert_names, raises

pytestmark = pytest.mark.timeout(60)

# Rank 0 waits for rank 1 to be ready, then fails.
FAIL_WHEN_READY = """
if RANK == 0:
    await_("ready")
    raise ValueError("bad")
"""


def test_ranks_get_their_variables_and_output_passes(start_job: Callable[..., Any], tmp_path: Path) -> None:
    script = """
names = "WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT HOCKET_JOB OMP_NUM_THREADS HOCKET_RECORD_DIR"
line = " ".join([str(RANK), *(os.environ[name] for name in names.split()), str(os.getpgrp() == os.getpid())])
os.write(1, f"{line} {sys.stdin.read()!r} {os.environ.get('TORCHELASTIC_RUN_ID')}\\n".encode())
os.write(2, b"error output\\n")
"""
    job = start_job(script, 3, env={"TORCHELASTIC_RUN_ID": "outer", "OMP_NUM_THREADS": "5"})
    assert job.finish() == 0
    assert job.stderr == "error output\n" * 3
    ranks = sorted(line.split() for line in job.stdout.splitlines())
    assert [rank[0] for rank in ranks] == ["0", "1", "2"]
    for rank, size, local_rank, local_size, address, port, name, threads, records, leads, stdin, outer in ranks:
        assert (size, local_rank, local_size, address) == ("3", rank, "3", "127.0.0.1")
        assert (threads, leads, stdin, outer) == ("5", "True", "''", "None")
        assert int(port) > 1023 and len(name) == 32
        assert records == str(tmp_path / "hocket-records" / name)
    assert len({tuple(rank[5:7]) for rank in ranks}) == 1
    assert job.leftovers() == []


@pytest.mark.parametrize(
    ("statement", "code", "names"),
    [
        ("sys.exit(7)", 7, ("rank 1", "7")),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ("rank 1", "SIGKILL")),
        ("os.abort()", 134, ("rank 1", "SIGABRT")),
    ],
)
def test_exit_code_of_the_first_failure(
    start_job: Callable[..., Any], statement: str, code: int, names: tuple[str, ...]
) -> None:
    job = start_job(f"if RANK == 1: {statement}", 2)
    assert job.finish() == code
    assert job.stderr.count("\n") == 1
    assert_names(job.stderr, *names)
    assert job.leftovers() == []


def test_first_traceback_is_whole_and_consequences_are_lines(start_job: Callable[..., Any]) -> None:
    script = """
from hocket.errors import PeerFailure
if RANK == 2:
    try:
        raise ValueError("the cause")
    finally:
        import atexit
        atexit.register(lambda: (tell("a"), tell("b"), await_("c"), await_("d")))
await_("ab"[RANK])
tell_at_exit = "cd"[RANK]
import atexit
atexit.register(tell, tell_at_exit)
raise PeerFailure("rank 2 died\\nmore")
"""
    job = start_job(script, 3, fifos=("a", "b", "c", "d"), term_after_s=10, kill_after_s=20)
    assert job.finish() == 1
    first, *rest = job.stderr.splitlines()
    assert_names(first, "rank 2")
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-3:] == [
        "ValueError: the cause",
        "rank 0: PeerFailure: rank 2 died",
        "rank 1: PeerFailure: rank 2 died",
    ]
    assert job.stderr.count("Traceback") == 1


def test_others_are_terminated_then_killed(start_job: Callable[..., Any]) -> None:
    script = (
        FAIL_WHEN_READY
        + """
if RANK == 1:
    signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
    tell("ready")
    while True: signal.pause()
"""
    )
    job = start_job(script, 2, fifos=("ready",))
    assert job.finish() == 1
    assert job.stdout == "heard\n"
    assert_names(job.stderr.splitlines()[-1], "rank 1", "SIGKILL")
    assert job.leftovers() == []


def test_stopped_rank_is_gone_within_8_s(start_job: Callable[..., Any]) -> None:
    # With the launcher's own patience; this is the one test that spends it.
    script = (
        FAIL_WHEN_READY
        + """
if RANK == 1:
    tell("ready")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    )
    started_s = time.monotonic()
    job = start_job(script, 2, fifos=("ready",), term_after_s=3, kill_after_s=6)
    assert job.finish() == 1
    assert 5.5 < time.monotonic() - started_s < 8 + 2  # 2 s for the start
    assert_names(job.stderr.splitlines()[-1], "rank 1", "SIGKILL")


@pytest.mark.parametrize("tag", [False, True], ids=["inherited", "tagged"])
def test_processes_of_a_rank_end_with_the_job(start_job: Callable[..., Any], tag: bool) -> None:
    # The child holds the job's pipes and ignores SIGTERM; `finish` returns only when it is gone.
    script = """
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); signal.pause()"
subprocess.Popen([sys.executable, "-c", child])
await_("ready")
print("done")
"""
    job = start_job(script, 1, tag=tag, fifos=("ready",))
    assert job.finish() == 0
    assert job.stdout == ("[0] done\n" if tag else "done\n")


def test_pipe_held_from_outside_the_group_does_not_hold_the_launcher(start_job: Callable[..., Any]) -> None:
    script = """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(child.pid)
"""
    job = start_job(script, 1, tag=True)
    assert job.finish() == 0
    pid = int(job.stdout.removeprefix("[0] "))
    os.kill(pid, signal.SIGKILL)  # still there: it has left the job on purpose


def test_tagged_output(start_job: Callable[..., Any]) -> None:
    script = """
os.write(1, b"one\\ntwo\\n")
os.write(1, b"x" * 200_000 + b"\\n")
os.write(2, b"10 %\\r20 %\\r")
os.write(1, b"no end")
"""
    job = start_job(script, 2, tag=True)
    assert job.finish() == 0
    for rank in ("0", "1"):
        lines = [line[4:] for line in job.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines[:2] + lines[-1:] == ["one", "two", "no end"]
        assert sum(map(len, lines[2:-1])) == 200_000
        assert job.stderr.count(f"[{rank}] ") == 2
    assert all(line[:4] in ("[0] ", "[1] ") for line in job.stdout.splitlines())


def test_timeout(start_job: Callable[..., Any]) -> None:
    job = start_job("signal.pause()", 2, timeout_s=0.5)
    assert job.finish() == 124
    assert_names(job.stderr.splitlines()[0], "hocket run")


def test_killed_launcher_leaves_nothing(start_job: Callable[..., Any]) -> None:
    script = """
child = "import os, signal; os.write(1, b'ready\\\\n'); signal.pause()"
subprocess.Popen([sys.executable, "-c", child])
signal.pause()
"""
    job = start_job(script, 2)
    assert [job.read_line(), job.read_line()] == ["ready\n", "ready\n"]
    job.process.kill()
    job.finish()  # the ranks and their children held the pipes
    deadline_s = time.monotonic() + 10
    while job.leftovers():  # the guardian, nobody's child now, can only be watched by what it does
        assert time.monotonic() < deadline_s, job.leftovers()
        time.sleep(0.01)


def test_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with raises(LaunchError, names=("rank 0", "/no/such/program", NO_SUCH_FILE)):
        run_job(["/no/such/program"], 2)
    assert list(tmp_path.iterdir()) == []


def test_number_of_ranks() -> None:
    with raises(InvalidArgument, names=("num_ranks", "1", "0")):
        run_job(["true"], 0)


def test_handlers_of_the_caller_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    assert run_job(["true"], 1).exit_code == 0
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    assert after == before
