"""Real jobs: their ends when ranks fail, hang, are stopped or killed, and that no process or file remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.boot.admission import MOST_RANKS_PER_CPU
from hocket.boot.job_result import EXIT_OUTPUT_LOST
from hocket.boot.launcher import run_job
from hocket.boot.rank_output import MOST_LINE_BYTES
from hocket.errors import InvalidArgument, LaunchError

from ..load import scaled
from ..naming import NO_SPACE_LEFT, NO_SUCH_FILE, assert_names, raises
from ..program import hocket, run_python

pytestmark = pytest.mark.timeout(60)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Rank 0 waits for rank 1 to be ready, then fails.
FAIL_WHEN_READY = """
if RANK == 0:
    await_("ready")
    raise ValueError("bad")
"""


def test_ranks_get_their_variables_and_output_passes(start_job: Callable[..., Any], tmp_path: Path) -> None:
    script = """
names = "WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HOCKET_JOB"
names += " OMP_NUM_THREADS HOCKET_RECORD_DIR"
line = " ".join([str(RANK), *(os.environ[name] for name in names.split()), str(os.getpgrp() == os.getpid())])
os.write(1, f"{line} {sys.stdin.read()!r} {os.environ.get('TORCHELASTIC_RUN_ID')}\\n".encode())
os.write(2, b"error output\\n")
"""
    cache = tmp_path / "cache"
    env = {
        "TORCHELASTIC_RUN_ID": "outer",
        "OMP_NUM_THREADS": "5",
        "HOCKET_RECORD_DIR": "",
        "XDG_CACHE_HOME": str(cache),
    }
    job = start_job(script, 3, env=env)
    assert job.finish() == 0
    assert job.stderr == "error output\n" * 3
    ranks = sorted(line.split() for line in job.stdout.splitlines())
    assert [rank[0] for rank in ranks] == ["0", "1", "2"]
    for rank, size, local_rank, local_size, host, num_hosts, address, *others in ranks:
        assert (size, local_rank, local_size, address) == ("3", rank, "3", "127.0.0.1")
        assert (host, num_hosts) == ("0", "1")
        port, name, threads, records, leads, stdin, outer = others
        assert (threads, leads, stdin, outer) == ("5", "True", "''", "None")
        assert int(port) > 1023 and len(name) == 32
        assert records == str(cache / "hocket" / "records" / name)
    assert len({tuple(rank[7:9]) for rank in ranks}) == 1
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
    assert rest[-2:] == ["ValueError: the cause", "ranks 0-1: PeerFailure: rank 2 died"]
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
    # With the launcher's default time limits; the only test that waits for them.
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
    # The child has the job's pipes and ignores SIGTERM; `finish` returns only after its end.
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
    os.kill(pid, signal.SIGKILL)  # still running: it has left the job on purpose


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
child = "import os, signal; os.write(1, f'{os.getpid()}\\\\n'.encode()); signal.pause()"
subprocess.Popen([sys.executable, "-c", child])
signal.pause()
"""
    job = start_job(script, 2)
    children = [int(job.read_line()), int(job.read_line())]
    job.process.kill()
    job.finish()
    deadline_s = time.monotonic() + 10
    # The guardian has no parent any more, so only its effects can be checked.
    while left := [*job.leftovers(), *filter(is_alive, children)]:
        assert time.monotonic() < deadline_s, left
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


def test_lines_of_ranks_stay_whole_and_in_order(start_job: Callable[..., Any]) -> None:
    """A line and its end are two writes; an incomplete line remains for long."""
    script = """
for number in range(20_000):
    os.write(1, b"%d" % RANK)
    os.write(1, b" %d\\n" % number)
os.write(1, b"%d within" % RANK)
(tell, await_)[RANK]("a"); (await_, tell)[RANK]("b")
os.write(1, b" a line")
"""
    job = start_job(script, 2, fifos=("a", "b"))
    assert job.finish() == 0
    lines = job.stdout.splitlines()
    for rank in "01":
        own = [line for line in lines if line.startswith(rank)]
        assert own == [f"{rank} {number}" for number in range(20_000)] + [f"{rank} within a line"]
    assert len(lines) == 40_002


def test_long_lines_pass(start_job: Callable[..., Any]) -> None:
    nbytes = MOST_LINE_BYTES + (3 << 20)
    job = start_job(f"sys.stdout.write(str(RANK) * {nbytes} + '\\n')", 2)
    assert job.finish() == 0
    assert job.stdout.count("0") == job.stdout.count("1") == nbytes
    assert all(len(set(line)) == 1 for line in job.stdout.splitlines())  # a line never has parts of two ranks


def test_both_outputs_to_one_place_keep_their_order(tmp_path: Path, start_job: Callable[..., Any]) -> None:
    script = """
for number in range(2_000):
    os.write(1 + number % 2, b"%d %d\\n" % (RANK, number))
"""
    (tmp_path / "both.py").write_text(
        "import os, runpy, sys\nos.dup2(1, 2)\nsys.argv = ['hocket', 'run', '-n', '2', 'script.py']\n"
        "runpy.run_module('hocket.cli', run_name='__main__')"
    )
    start_job(script, 1).finish()  # writes script.py
    job = run_python(str(tmp_path / "both.py"), folder=tmp_path, timeout_s=50)
    for rank in "01":
        assert [line for line in job.stdout.splitlines() if line[0] == rank] == [f"{rank} {n}" for n in range(2_000)]


def test_ranks_have_terminals_where_the_launcher_has_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1), flush=True)\n"
        "print('a\\tb')"
    )
    mine, others = os.openpty()
    termios.tcsetwinsize(others, (33, 77))
    job = subprocess.Popen(
        [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "script.py"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=others, stderr=others,
    )  # fmt: skip
    os.close(others)
    seen = b""
    try:
        while chunk := os.read(mine, 4096):
            seen += chunk
    except OSError:  # how a terminal says that it is over
        pass
    os.close(mine)
    assert job.wait(30) == 0
    size = "os.terminal_size(columns=77, lines=33)"
    assert sorted(seen.decode().splitlines()) == sorted([f"True True {size}", "a\tb"] * 2)


@pytest.mark.parametrize("output", ["pipe", "terminal"])
def test_a_reader_that_stops_holds_no_signal(output: str, tmp_path: Path) -> None:
    """As with a pager or Ctrl-S: unread output blocks the ranks, but Ctrl-C still works."""
    (tmp_path / "script.py").write_text("""
import os
open(os.environ["RANK"], "w").close()
try:
    while True: os.write(1, b"y" * 1000 + b"\\n")
except KeyboardInterrupt:
    open("heard-" + os.environ["RANK"], "w").close()
""")
    mine, others = os.pipe() if output == "pipe" else os.openpty()
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "script.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=others, stderr=subprocess.DEVNULL)
    os.close(others)
    try:
        while not (tmp_path / "0").exists() or not (tmp_path / "1").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # until all buffers are full
        job.send_signal(signal.SIGINT)
        assert job.wait(40) == 0
        assert (tmp_path / "heard-0").exists() and (tmp_path / "heard-1").exists()
    finally:
        job.kill()
        os.close(mine)


def test_ranks_whose_reader_is_gone_are_told(start_job: Callable[..., Any]) -> None:
    """As under `| head`."""
    job = start_job("while True: os.write(1, b'y' * 1000 + b'\\n')", 2)
    job.read_line()
    job.process.stdout.close()
    job.process.stdout = None
    assert job.finish() == 1
    assert_names(job.stderr, "BrokenPipeError")


def test_ranks_that_do_not_hear_a_signal_are_named(start_job: Callable[..., Any]) -> None:
    script = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.write(1, b"up\\n")
signal.pause()
"""
    job = start_job(script, 2)
    assert job.read_line() == job.read_line() == "up\n"
    job.process.send_signal(signal.SIGINT)
    assert_names(job.read_error(), "ranks 0-1", "Ctrl-C")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    assert job.leftovers() == []


def test_signal_while_ranks_start(start_job: Callable[..., Any]) -> None:
    script = """
os.write(1, b"up\\n")
signal.pause()
"""
    job = start_job(script, 200)
    job.read_line()
    begin_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    assert time.monotonic() - begin_s < 20 and job.stdout.count("up") < 199
    assert job.stderr.count("\n") < 10 and job.leftovers() == []


def test_signal_while_the_interpreters_of_ranks_take_long_to_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
import os, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "hocket.boot.readiness" and "RANK" in os.environ:
            os.write(2, b"starting\\n")
            time.sleep(60)
sys.meta_path.insert(0, Slow())
""")
    (tmp_path / "script.py").write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket.cli", "run", "-n", "12", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        # Eight at a time; after two seconds a slow start no longer delays others.
        assert [process.stderr.readline() for _ in range(9)] == ["starting\n"] * 9
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=scaled(20))
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in said


@pytest.mark.parametrize("num_ranks", [100_000, MOST_RANKS_PER_CPU * len(os.sched_getaffinity(0)) + 1])
def test_more_ranks_than_there_is_room_for(num_ranks: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    job = hocket("run", "-n", str(num_ranks), "script.py", folder=tmp_path)
    assert job.returncode == 2
    assert_names(job.stderr, str(num_ranks), str(MOST_RANKS_PER_CPU), "--oversubscribe")
    assert job.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_outputs_that_are_closed(closed: list[int], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nfor _ in range(3_000): print('y' * 1000)\nopen('done-' + os.environ['RANK'], 'w').close()"
    )
    shut = " ".join(f"{fd}>&-" for fd in closed)
    command = f"exec {sys.executable} -m hocket.cli run -n 2 script.py {shut}"
    job = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, timeout=40)
    assert job.returncode == 0
    assert (tmp_path / "done-0").exists() and (tmp_path / "done-1").exists()


def test_what_a_full_disk_takes_away_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('a line')")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "script.py"]
        job = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=40)
    assert job.returncode == EXIT_OUTPUT_LOST
    assert_names(job.stderr, NO_SPACE_LEFT)


def test_a_child_that_writes_for_ever_does_not_hold_the_launcher(start_job: Callable[..., Any]) -> None:
    child = "import os, signal\nwhile True: os.write(1, b'y' * 1000)"
    job = start_job(f"subprocess.Popen([sys.executable, '-c', {child!r}])", 2)
    assert job.finish() == 0


@pytest.mark.parametrize("cause", ["ValueError('bad')", "hk.PeerFailure('gone')"])
def test_records_stay_but_where_the_program_itself_raised(cause: str, tmp_path: Path) -> None:
    """They are in the cache, not in the working directory, which may not be writable."""
    script = f"""
import hocket as hk, os
comm = hk.init(timeout=20)
if comm.rank == 1:
    raise {cause}
comm.barrier()
"""
    (tmp_path / "script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "HOCKET_RECORD_DIR"}
    cache = tmp_path / "cache"
    environment["XDG_CACHE_HOME"] = str(cache)
    job = hocket("run", "-n", "2", "script.py", folder=tmp_path, environment=environment)
    assert job.returncode == 1
    assert bool(list(cache.glob("hocket/records/*/rank-0.json"))) == ("PeerFailure" in cause)
    assert sorted(each.name for each in tmp_path.iterdir() if each != cache) == ["script.py"]


def test_a_line_that_is_begun_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """Another rank's line is not appended to it: that waits for its end, or is written below it."""
    (tmp_path / "script.py").write_text("""
import os, time
rank = os.environ["RANK"]
if rank == "0":
    os.write(1, b"loading")
    open("shown", "w").close()
    while not os.path.exists("go on"): time.sleep(0.01)
    os.write(1, b" done\\n")
    open("quick", "w").close()
else:
    while not os.path.exists("go below"): time.sleep(0.01)
    os.write(1, b"other\\n")
""")
    mine, others = os.openpty()
    tty.setraw(others)
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "script.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=others, stderr=others)
    os.close(others)
    seen = b""
    try:
        while b"loading" not in seen:
            seen += os.read(mine, 4096)
        (tmp_path / "go below").touch()
        while b"other" not in seen:
            seen += os.read(mine, 4096)
        (tmp_path / "go on").touch()
        while chunk := os.read(mine, 4096):
            seen += chunk
    except OSError:  # how a terminal says that it is over
        pass
    finally:
        os.close(mine)
    assert job.wait(30) == 0
    assert seen == b"loading\nother\n done\n"


def test_each_rank_has_a_session_of_its_own(start_job: Callable[..., Any]) -> None:
    """Linux divides processor time between sessions: ranks in a terminal's session would share its part."""
    job = start_job("print(os.getsid(0) == os.getpid(), flush=True)", 2)
    assert job.finish() == 0 and job.stdout == "True\n" * 2
