"""The hooks that record file I/O: every byte that strace sees, and programs that behave as without them."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hocket._native import IO_NAMES
from hocket.trace.record import EVENT_STATES

from .traced_io import calls, recorded_bytes, run_hooked, snapshots

pytestmark = [
    pytest.mark.timeout(240),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`io_program.cpp`, compiled."""
    return compiled(tmp_path_factory.mktemp("program"))


def compiled(folder: Path, *options: str) -> Path:
    """Compile `io_program.cpp` into a folder."""
    path = folder / "io_program"
    command = ["c++", "-std=c++20", "-O1", *options, str(HERE / "io_program.cpp"), "-o", str(path), "-pthread"]
    subprocess.run(command, check=True, timeout=120)
    return path


def plainly(program: Path, way: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program, way, folder], capture_output=True, timeout=60)


def sizes_of(folder: Path, pattern: str) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.glob(pattern)}


@pytest.mark.parametrize("way", ["failing", "cancel"])
def test_results_and_errors_are_the_same(program: Path, way: str, tmp_path: Path) -> None:
    expected = plainly(program, way, tmp_path)
    found = run_hooked([program, way, tmp_path], tmp_path / "recorders")
    assert (found.returncode, found.stdout, found.stderr) == (0, expected.stdout, expected.stderr)
    assert expected.returncode == 0 and expected.stdout


def test_failed_calls_are_recorded_with_their_errors(program: Path, tmp_path: Path) -> None:
    run_hooked([program, "failing", tmp_path], tmp_path / "recorders")
    (snapshot,) = snapshots(tmp_path / "recorders")
    events = snapshot.rings["io"].events
    failed = events[events["state"] == EVENT_STATES.index("failed")]
    found = [
        (IO_NAMES[int(event["kind"])], errno.errorcode[int(event["peer"])], int(event["nbytes"])) for event in failed
    ]
    assert [each for each in found if each[0] == "open"] == [
        ("open", "ENOENT", 0), ("open", "ENOTDIR", 0), ("open", "ENOENT", 0), ("open", "ENOENT", 0),
    ]  # fmt: skip
    assert {("write", "EBADF", 0), ("read", "EINVAL", 0), ("read", "EFAULT", 0), ("map", "EACCES", 0)} <= set(found)
    histograms = snapshot.histograms
    assert histograms["failed"].sum() == len(failed)
    assert not (events["peer"][events["state"] == EVENT_STATES.index("completed")]).any()


def test_events_say_what_happened(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        f"fd = os.open({str(tmp_path / 'file')!r}, os.O_RDWR | os.O_CREAT)\n"
        "os.write(fd, bytes(100)); os.pread(fd, 30, 40); os.writev(fd, [b'ab', b'c']); os.fsync(fd); os.close(fd)\n"
    )
    run_hooked([sys.executable, script], tmp_path / "recorders")
    (snapshot,) = snapshots(tmp_path / "recorders")
    assert [(kind, nbytes, route) for kind, _, nbytes, route in calls(snapshot, "file")] == [
        ("open", 0, "posix"), ("write", 100, "posix"), ("read", 30, "posix"), ("write", 3, "vectored"),
        ("sync", 0, "posix"), ("close", 0, "posix"),
    ]  # fmt: skip
    events = snapshot.rings["io"].events
    (number,) = [each.id for each in snapshot.definitions if each.text == str(tmp_path / "file")]
    ours = events[events["comm"] == number]
    assert list(ours["aux"])[2] == 40 and list(ours["aux"])[1] == 2**64 - 1
    assert (ours["t_end"] >= ours["t_begin"]).all() and (np.diff(ours["t_begin"].astype(np.int64)) > 0).all()
    threads = {each.id: each.extra for each in snapshot.definitions if each.kind == "thread"}
    assert {threads[int(thread)] for thread in ours["thread"]} == {snapshot.owner.pid}


def test_nothing_is_recorded_unless_wanted(program: Path, tmp_path: Path) -> None:
    recorders = tmp_path / "recorders"
    for layers in ("", "communication", "iox,xio"):
        assert run_hooked([program, "stdio", tmp_path], recorders, layers=layers).returncode == 0
        assert not list(recorders.iterdir())
    assert run_hooked([program, "stdio", tmp_path], recorders, layers="x,io").returncode == 0
    (snapshot,) = snapshots(recorders)
    assert len(snapshot.rings["io"].events) > 100


def test_a_signal_handler_that_writes_inside_a_write(program: Path, tmp_path: Path) -> None:
    result = run_hooked([program, "handler", tmp_path], tmp_path / "recorders")
    total, num_handled = (int(word) for word in result.stdout.split())
    recorded = recorded_bytes(snapshots(tmp_path / "recorders"))
    assert num_handled > 0
    assert recorded.written == sizes_of(tmp_path, "handler-*")
    assert sum(recorded.written.values()) == total + 11 * num_handled


def test_forks_between_threads_and_signals(program: Path, tmp_path: Path) -> None:
    result = run_hooked([program, "forking", tmp_path], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    found = snapshots(tmp_path / "recorders")
    recorded = recorded_bytes(found)
    assert len(found) == 21 and recorded.written == sizes_of(tmp_path, "forking-*")
    assert sum(recorded.written.values()) == int(result.stderr)


def test_threads_lose_nothing(program: Path, tmp_path: Path) -> None:
    run_hooked([program, "threads", tmp_path], tmp_path / "recorders")
    (snapshot,) = snapshots(tmp_path / "recorders")
    ring = snapshot.rings["io"]
    assert ring.issued == ring.recorded + ring.sampled_out + ring.dropped and ring.issued >= 8002
    assert recorded_bytes([snapshot]).read[str(tmp_path / "threads")] == 8_000_000
    assert len({event["thread"] for event in ring.events}) == 9


def test_a_program_that_closes_all_descriptors(program: Path, tmp_path: Path) -> None:
    result = run_hooked([program, "close-all", tmp_path], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    recorded = recorded_bytes(snapshots(tmp_path / "recorders"))
    assert {Path(name).name: n for name, n in recorded.written.items()} == {
        "before": 100, "after-close-range": 1000, "after-close": 500, "child-after-closefrom": 250,
    }  # fmt: skip


def test_closed_standard_streams(program: Path, tmp_path: Path) -> None:
    """The recorder must not get their numbers, nor the program's file another one than without hooks."""
    closing: list[str | Path] = ["sh", "-c", 'exec "$0" closed-standard "$1" 0<&- 1>&- 2>&-', program, tmp_path]
    assert run_hooked(closing, tmp_path / "recorders").returncode == 0
    assert recorded_bytes(snapshots(tmp_path / "recorders")).written == {str(tmp_path / "lowest"): 3}


def test_a_static_program_runs_as_ever(tmp_path: Path) -> None:
    result = run_hooked([compiled(tmp_path, "-static"), "stdio", tmp_path], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    assert not list((tmp_path / "recorders").glob("hocket-recorder-*"))


def test_more_files_than_have_room(tmp_path: Path) -> None:
    """The sums are exact; files without a definition of their own are counted together."""
    files = tmp_path / "files"
    files.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        f"for i in range(4000):\n    open(f'{files}/{{i}}', 'wb').write(bytes(i % 50)); open(f'{files}/{{i}}').read()\n"
    )
    run_hooked([sys.executable, "-I", "-S", script], tmp_path / "recorders")
    recorded = recorded_bytes(snapshots(tmp_path / "recorders"))
    expected = sum(i % 50 for i in range(4000))
    ours = [recorded.of(str(files)), recorded.of("other files")]
    assert [sum(each) for each in zip(*ours, strict=True)][1] == expected
    assert recorded.of("other files")[1] > expected / 2
    assert recorded.of(str(files))[1] > 0


def test_a_loop_over_letters(program: Path, tmp_path: Path) -> None:
    times = {}
    for name, result in (
        ("without", plainly(program, "getc", tmp_path)),
        ("with", run_hooked([program, "getc", tmp_path], tmp_path / "recorders")),
    ):
        count, seconds, pread_ns = (float(word) for word in result.stdout.split())
        assert count == 10_000_000
        times[name] = f"{seconds:.3f} s for 10 MB by letters, {pread_ns:.0f} ns for pread()"
    print(times)
