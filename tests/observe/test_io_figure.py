"""The figure of completeness: what the hooks have seen, against the kernel's own counters."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hocket.observe import IoAccount, IoCompleteness, completeness_of, open_run, record_run
from hocket.observe.completeness import account_numbers, last_look, total_of
from hocket.observe.description_fields import looks_from
from hocket.trace import RecorderSnapshot, io_totals, read_recorder

from ..load import scaled
from ..naming import assert_names
from ..program import hocket
from .test_io import compiled
from .traced_io import run_hooked, snapshots

pytestmark = pytest.mark.timeout(240)

_WAIT_FOR_A_LOOK = """
    import glob, os, signal, sys, time
    deadline = time.monotonic() + 60
    while not glob.glob(sys.argv[1] + "/*.io") and time.monotonic() < deadline:
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`io_program.cpp`, compiled."""
    return compiled(tmp_path_factory.mktemp("program"))


def script_of(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def of_program(found: list[RecorderSnapshot], word: str) -> RecorderSnapshot:
    (snapshot,) = [each for each in found if word in each.owner.program]
    return snapshot


def known(io: IoCompleteness) -> tuple[IoAccount, IoAccount]:
    assert io.read is not None and io.written is not None, io.reason
    return io.read, io.written


@pytest.mark.parametrize(
    "way", ["stdio", "vectored", "asynchronous", "handler", "threads", "children", "forking", "close-all", "deleted"]
)
def test_native_programs_are_seen_to_the_byte(program: Path, way: str, tmp_path: Path) -> None:
    """Every process that a program forks, too, and programs of the system that it starts."""
    files = tmp_path / "files"
    files.mkdir()
    result = run_hooked([program, way, files], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    figures = [completeness_of(each) for each in snapshots(tmp_path / "recorders")]
    assert figures and all(figure.as_of == "end" for figure in figures), figures
    accounts = [known(figure) for figure in figures]
    assert sum(read.kernel_nbytes + written.kernel_nbytes for read, written in accounts) > 0
    missing = [(read.missing_nbytes, written.missing_nbytes) for read, written in accounts]
    if way == "children":
        # The children of system() and popen(), for which the C library waits: a line and a text through a pipe.
        callers = [each for each in missing if each != (0, 0)]
        assert len(callers) == 1 and callers[0][1] == len("from the shell\n") + len("through a pipe"), missing
    else:
        assert set(missing) == {(0, 0)}, missing


_WAITING = """
import os, signal, sys, threading, time
def child(code=0, stops=False):
    pid = os.fork()
    if pid == 0:
        if stops:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.read(gate[0], 1)  # that it goes on is seen before it ends
        os.write(fd, b"x" * 100)
        os._exit(code)
    return pid
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
gate = os.pipe()
first = child(3)
print(os.waitpid(first, 0) == (first, 3 << 8))
second = child(4)
pid, status, used = os.wait4(-1, 0)
print(pid == second, status, used.ru_maxrss > 0)
third = child(5)
pid, status, used = os.wait3(0)
print(pid == third, status)
fourth = child(6, stops=True)
print(os.waitpid(fourth, os.WUNTRACED)[1] == (signal.SIGSTOP << 8 | 0x7f), os.waitpid(fourth, os.WNOHANG))
os.kill(fourth, signal.SIGCONT)
print(os.waitpid(fourth, os.WCONTINUED)[1] == 0xffff, os.write(gate[1], b"x"), os.wait() == (fourth, 6 << 8))
fifth = child(7)
found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(found.si_pid == fifth, found.si_status)
found = os.waitid(os.P_PID, fifth, os.WEXITED)
print(found.si_pid == fifth, found.si_status, found.si_code == os.CLD_EXITED)
os.setpgid(0, 0)
print(os.waitpid(0, 0)[1] if child(8) else None)
sleeper = os.fork()
if sleeper == 0:
    time.sleep(100)
print(os.waitpid(-1, os.WNOHANG), os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG))
signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    os.wait()
except ZeroDivisionError:
    print("interrupted")
os.kill(sleeper, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.wait()[1]))
for wait in (os.wait, lambda: os.waitpid(-1, 0), lambda: os.waitid(os.P_ALL, 0, os.WEXITED), lambda: os.wait3(0)):
    try:
        wait()
    except OSError as error:
        print(error.errno)
collected = []
children = [child() for _ in range(40)]
def collect():
    while True:
        try:
            collected.append(os.wait()[0])
        except ChildProcessError:
            return
threads = [threading.Thread(target=collect) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
print(sorted(collected) == sorted(children), os.fstat(fd).st_size, flush=True)
os._exit(0)
"""


def test_waiting_for_children_is_as_ever(tmp_path: Path) -> None:
    """Every way to wait, with the same results and errors; and no byte of a child is in the parent's figure."""
    plain = subprocess.run(
        [sys.executable, "-c", _WAITING, str(tmp_path / "plain")], capture_output=True, timeout=scaled(60)
    )
    assert plain.returncode == 0, plain.stderr
    hooked = run_hooked([sys.executable, "-c", _WAITING, tmp_path / "hooked"], tmp_path / "recorders")
    assert (hooked.returncode, hooked.stdout) == (0, plain.stdout), hooked.stderr
    assert b"False" not in plain.stdout
    accounts = [known(completeness_of(each)) for each in snapshots(tmp_path / "recorders") if each.io.state == "ended"]
    assert {written.missing_nbytes for _, written in accounts} == {0} and len(accounts) == 47


def test_the_kernels_counters_are_those_that_the_program_reads(tmp_path: Path) -> None:
    """It reads them when it begins and when it ends, and those of its child before it waits."""
    script = script_of(
        tmp_path,
        f"""
        import os, subprocess
        def counters(pid="self"):
            with open(f"/proc/{{pid}}/io", "rb", buffering=0) as file:
                text = file.read(4096)
            words = text.split()
            return int(words[1]), int(words[3]), len(text)
        first = counters()
        folder = {str(tmp_path)!r}
        with open(folder + "/data", "wb") as file:
            file.write(bytes(300_000))
        child = subprocess.Popen(["cat", folder + "/data"], stdout=subprocess.PIPE)
        assert len(child.stdout.read()) == 300_000
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        of_child = counters(child.pid)
        child.wait()
        last = counters()
        print(*first, *of_child, *last, flush=True)
        os._exit(0)
        """,
    )
    result = run_hooked([sys.executable, script], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    found = [int(word) for word in result.stdout.split()]
    first_read, first_written, _, child_read, child_written, child_length, last_read, last_written, last_length = found
    snapshot, child = of_program(snapshots(tmp_path / "recorders"), "script.py"), None
    child = of_program(snapshots(tmp_path / "recorders"), "cat")
    totals = snapshot.io
    # After the program's last look come the bytes of that look and its line, and three files of /proc for its last row.
    assert 0 < totals.at_end.read - last_read - last_length < 1000
    assert totals.at_end.written - last_written == len(result.stdout)
    assert totals.at_begin.read < first_read and totals.at_begin.written == first_written == 0
    # The hooks read the counters of the child, a zombie, once more, as long a text.
    assert totals.excluded.read == child_read + child_length
    assert totals.excluded.written == child_written == 300_000
    assert child.io.at_end.read <= child_read and child.io.at_end.written == child_written
    read, written = known(completeness_of(snapshot))
    assert read.other_nbytes > 300_000 and written.recorded_nbytes == 300_000
    assert written.missing_nbytes == 0 and 0 <= read.missing_nbytes < 200_000


def test_what_goes_around_the_hooks_is_missing(tmp_path: Path) -> None:
    """The C library's own functions, looked up in it and not in the program."""
    script = script_of(
        tmp_path,
        f"""
        import ctypes, os
        library = ctypes.CDLL("libc.so.6")
        path = {str(tmp_path / "data")!r}
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        data = ctypes.create_string_buffer(1_000_000)
        for _ in range(20):
            assert library.syscall(1, fd, data, 1_000_000) == 1_000_000
        os.lseek(fd, 0, 0)
        for _ in range(20):
            assert library.syscall(0, fd, data, 1_000_000) == 1_000_000
        os.write(fd, bytes(1_000_000))
        """,
    )
    recording = record_run([sys.executable, str(script)], tmp_path / "run")
    (process,) = open_run(tmp_path / "run").processes
    read, written = known(process.io)
    assert written.missing_nbytes == 20_000_000 and written.recorded_nbytes == 1_000_000
    assert written.share == pytest.approx(1 / 21, abs=1e-9)
    assert 20_000_000 <= read.missing_nbytes < 20_200_000 and read.share is not None and read.share < 0.5
    assert recording.io.total.written == written
    assert recording.io.worst_written.startswith(f"process {process.snapshot.owner.pid} (")


def test_bytes_inside_other_calls(tmp_path: Path) -> None:
    """splice() is not in the kernel's counters; sendfile() to a pipe is, on both sides."""
    script = script_of(
        tmp_path,
        f"""
        import os
        path = {str(tmp_path / "data")!r}
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(fd, bytes(60_000))
        ours, theirs = os.pipe()
        os.lseek(fd, 0, 0)
        assert os.splice(fd, theirs, 10_000) == 10_000
        assert len(os.read(ours, 20_000)) == 10_000
        assert os.sendfile(theirs, fd, 0, 20_000) == 20_000
        assert len(os.read(ours, 40_000)) == 20_000
        """,
    )
    record_run([sys.executable, "-I", "-S", str(script)], tmp_path / "run")
    (process,) = open_run(tmp_path / "run").processes
    _, written = known(process.io)
    assert process.snapshot.io.uncounted.read == 10_000
    assert (written.recorded_nbytes, written.other_nbytes, written.missing_nbytes) == (60_000, 20_000, 0)
    assert process.snapshot.io.other.read >= 30_000


def test_ends_of_all_kinds(tmp_path: Path) -> None:
    """A replaced program, a forked child that leaves by _exit(), one that exec() did not find, and a killed one."""
    script = script_of(
        tmp_path,
        _WAIT_FOR_A_LOOK
        + """
    with open(sys.argv[1] + "/../data", "wb", buffering=0) as file:
        file.write(bytes(1000))
    if os.fork() == 0:
        with open(sys.argv[1] + "/../data", "rb") as file:
            file.read()
        os._exit(0)
    os.wait()
    try:
        os.execv("/no/such/program", ["program"])
    except FileNotFoundError:
        pass
    with open(sys.argv[1] + "/../data", "wb", buffering=0) as file:
        file.write(bytes(500))
    if sys.argv[2] == "exec":
        os.execv("/bin/cat", ["cat", sys.argv[1] + "/../data"])
    os.kill(os.getpid(), signal.SIGKILL)
    """,
    )
    record_run([sys.executable, str(script), str(tmp_path / "exec"), "exec"], tmp_path / "exec")
    replaced = open_run(tmp_path / "exec").processes
    assert len(replaced) >= 2
    figures = [known(each.io) for each in replaced]
    assert [each.io.as_of for each in replaced] == ["end"] * len(replaced)
    assert [written.missing_nbytes for _, written in figures] == [0] * len(replaced)
    record_run([sys.executable, str(script), str(tmp_path / "kill"), "kill"], tmp_path / "kill")
    processes = open_run(tmp_path / "kill").processes
    assert sorted((each.snapshot.io.state, each.io.as_of) for each in processes) == [
        ("ended", "end"), ("running", "last look"),
    ]  # fmt: skip


def test_a_killed_process_has_the_figure_of_the_last_look(tmp_path: Path) -> None:
    script = script_of(tmp_path, _WAIT_FOR_A_LOOK + "    os.kill(os.getpid(), signal.SIGKILL)\n")
    recording = record_run([sys.executable, str(script), str(tmp_path / "run")], tmp_path / "run")
    (process,) = open_run(tmp_path / "run").processes
    assert process.snapshot.io.state == "running" and process.io.as_of == "last look"
    read, _ = known(process.io)
    assert read.share is not None and 0.9 < read.share <= 1
    assert recording.io.total.read == read


def test_the_command_always_shows_the_figure(tmp_path: Path) -> None:
    done = hocket("observe", "run", "--output", str(tmp_path / "run"), "--", "cat", "/etc/hostname")
    lines = [line for line in done.stderr.splitlines() if "reads: " in line or "writes: " in line]
    assert len(lines) == 2 and all("1.000 of " in line for line in lines), done.stderr
    shown = json.loads(
        hocket("observe", "run", "--json", "--output", str(tmp_path / "again"), "--", "cat", "/etc/hostname")
        .stdout.splitlines()[-1]
    )  # fmt: skip
    assert shown["io"]["total"]["read"]["share"] == 1.0 and shown["io"]["total"]["written"]["missing_nbytes"] == 0
    without = hocket("observe", "run", "--layers", "comm", "--output", str(tmp_path / "comm"), "--", "true")
    assert "unavailable: " in without.stderr


def test_top_and_attach_show_it_of_a_process_that_runs(tmp_path: Path) -> None:
    program = (
        "import sys, time, numpy\nimport hocket as hk\ncomm = hk.init()\n"
        "open(sys.argv[1], 'wb').write(bytes(1_000_000))\nprint('ready', flush=True)\ntime.sleep(200)"
    )
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "run"), "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", program, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (rank,) = json.loads(hocket("observe", "top", str(process.pid), "--json", "--interval", "0.1").stdout)["ranks"]
        assert rank["io"]["as_of"] == "now" and rank["io"]["written"]["missing_nbytes"] == 0
        assert 0.9 < rank["io"]["read"]["share"] <= 1
        pid = rank["owner"]["pid"]
        assert "reads: 0.9" in hocket("observe", "attach", str(pid)).stdout
        (shown,) = json.loads(hocket("observe", "attach", str(pid), "--json").stdout)
        assert shown["io"]["written"]["recorded_nbytes"] == 1_000_000
    finally:
        if (pids := _children(process.pid)) and process.poll() is None:
            for pid in pids:
                subprocess.run(["kill", str(pid)], check=False, timeout=10)
        process.wait(timeout=scaled(30))


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_counters_that_cannot_be_read_or_believed(tmp_path: Path) -> None:
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    (path,) = (tmp_path / "run").glob("*.recorder")
    whole = path.read_bytes()

    def changed(state: int, code: int = 0, read_at_begin: int = 0) -> RecorderSnapshot:
        content = bytearray(whole)
        struct.pack_into("<IIQ", content, io_totals.AT, state, code, read_at_begin)
        path.write_bytes(content)
        return read_recorder(path)

    refused = completeness_of(changed(io_totals.STATES.index("unreadable"), errno.EACCES))
    assert refused.read is None and "Permission denied" in refused.reason
    assert completeness_of(changed(0)).reason and completeness_of(changed(1)).reason
    odd = changed(9)
    assert odd.io.state == "none" and any(f"offset {io_totals.AT}" in problem for problem in odd.problems)
    assert "contradict" in completeness_of(changed(2, 0, 1 << 60)).reason
    (tmp_path / "cut").write_bytes(whole[:1500])
    assert read_recorder(tmp_path / "cut").io.state == "none"


def test_looks_in_damaged_runs() -> None:
    io = IoCompleteness(IoAccount(1, 2, 3), IoAccount(4, 5, 6), "now", "")
    numbers = account_numbers(io)
    assert looks_from({"process": numbers}, "io_looks") == {"process": numbers}
    assert last_look(numbers) == IoCompleteness(io.read, io.written, "last look", "")
    for wrong in ([1, 2, 3], [1, 2, 3, 4, 5, "6"], {"read": 1}, None, [True] * 6):
        with pytest.raises((ValueError, TypeError)) as caught:
            looks_from({"process": wrong}, "io_looks")
        assert_names(str(caught.value), "io_looks")


def test_sums_of_processes() -> None:
    first = IoCompleteness(IoAccount(10, 5, 20), IoAccount(1, 0, 1), "end", "")
    second = IoCompleteness(IoAccount(100, 0, 101), IoAccount(0, 0, 0), "end", "")
    broken = IoCompleteness(None, None, "", "no permission")
    total = total_of([("first", first), ("second", second), ("third", broken)])
    assert total.total.read == IoAccount(110, 5, 121) and total.worst_read == "first" and total.worst_written == ""
    assert total.num_unavailable == 1
    assert total_of([("third", broken)]).total.reason == "no permission"
    assert IoAccount(0, 0, 0).share is None
