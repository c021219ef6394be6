"""`hocket observe run`: what is saved of programs that import hocket, fork, replace themselves or are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe import SavedProcess, open_run, record_run
from hocket.observe.run import is_in_memory, memory_folder

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def _with(text: str, **values: object) -> str:
    return json.dumps({**json.loads(text), **values})


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory for these tests alone: other programs on this machine may be recorded meanwhile."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def _left_in(memory: Path) -> set[str]:
    return {each.name for each in memory.glob("hocket-*")}


def _of_communication(process: SavedProcess) -> np.ndarray:
    totals = process.snapshot.histograms
    return totals[totals["layer"] == 0]


def test_a_program_of_hocket_and_its_forked_child(tmp_path: Path, memory: Path) -> None:
    program = """
import os, numpy as np, hocket as hk
from hocket import observe
with hk.init() as comm:
    for step in range(20_000):
        comm.all_reduce(np.ones(2))
    if os.fork() == 0:
        with observe.region("child", step=1):
            pass
        os._exit(0)
    os.wait()
    observe.mark("end")
"""
    recording = record_run(_python(program), tmp_path / "run")
    assert (recording.exit_code, recording.num_processes, recording.problems) == (0, 2, ())
    run = open_run(tmp_path / "run")
    assert run.description.command[0] == sys.executable and run.description.exit_code == 0
    parent, child = run.processes
    operations = parent.events["operations"]
    totals = _of_communication(parent)
    assert len(operations) + parent.lost.get("operations", 0) == int(totals["count"].sum())
    assert np.array_equal(np.unique(operations["place"]), operations["place"])
    assert set(operations["state"]) == {3}
    assert int(totals["count"].max()) == 20_000
    names = {each.id: each.text for each in child.snapshot.definitions if each.kind == "region"}
    assert [names[event["comm"]] for event in child.events["program"]] == ["child"]
    assert child.snapshot.owner.pid != parent.snapshot.owner.pid
    assert _left_in(memory) == set()


def test_a_program_that_replaces_itself_leaves_two_recorders(tmp_path: Path) -> None:
    program = """
import os, sys
from hocket import observe
observe.mark(sys.argv[1])
if sys.argv[1] == "first":
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], "second"])
"""
    recording = record_run([*_python(program), "first"], tmp_path / "run")
    assert recording.num_processes == 2
    first, second = open_run(tmp_path / "run").processes
    assert first.snapshot.owner.pid == second.snapshot.owner.pid
    assert first.snapshot.owner.image != second.snapshot.owner.image
    marks = {each.text for process in (first, second) for each in process.snapshot.definitions if each.kind == "region"}
    assert marks == {"first", "second"}


def test_a_killed_program_is_saved_as_it_was(tmp_path: Path) -> None:
    program = """
import os, signal
from hocket import observe
with observe.region("last"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    recording = record_run(_python(program), tmp_path / "run")
    assert recording.exit_code == -signal.SIGKILL
    (process,) = open_run(tmp_path / "run").processes
    assert not process.snapshot.owner.has_ended
    assert [(event["state"], event["t_end"]) for event in process.events["program"]] == [(1, 0)]
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "again"), "--"]
    done = subprocess.run([*command, *_python(program)], capture_output=True, timeout=scaled(60))
    assert done.returncode == 128 + signal.SIGKILL


def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    program = """
import signal, time
from hocket import observe
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
observe.mark("begun")
try:
    print("ready", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--json", "--output", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--", *_python(program)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, _ = process.communicate(timeout=scaled(30))
    finally:
        process.kill()
    assert process.returncode == 7 and json.loads(output)["num_processes"] == 1
    assert open_run(tmp_path / "run").description.exit_code == 7


def test_events_that_come_too_fast_are_counted_as_lost(tmp_path: Path) -> None:
    # The agent is stopped, as on a machine that is too busy for it.
    program = """
import os, signal, time
import numpy as np, hocket as hk
with hk.init() as comm:
    os.kill(os.getppid(), signal.SIGSTOP)
    for _ in range(30_000):
        comm.all_reduce(np.ones(2))
    os.kill(os.getppid(), signal.SIGCONT)
"""
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "run"), "--"]
    done = subprocess.run([*command, *_python(program)], capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    (process,) = open_run(tmp_path / "run").processes
    lost, saved = process.lost["operations"], process.events["operations"]
    totals = _of_communication(process)
    assert lost + len(saved) == int(totals["count"].sum()) >= 30_000 and lost >= 30_000 - 8192
    assert str(lost) in done.stderr


@pytest.mark.parametrize("layers", [[], ["disk"], ["comm", "net"]])
def test_unknown_layers_are_refused_before_anything_starts(layers: list[str], tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("comm", "io")):
        record_run(["touch", str(tmp_path / "started")], tmp_path / "run", layers=layers)
    assert not (tmp_path / "started").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(InvalidArgument, names=(str(tmp_path),)):
        record_run(["true"], tmp_path)


def test_damaged_runs(tmp_path: Path) -> None:
    with raises(RecorderError, names=("run.json",)):
        open_run(tmp_path)
    record_run(_python("from hocket import observe\nfor n in range(9): observe.mark('m', n)"), tmp_path / "run")
    folder = tmp_path / "run"
    (events,) = folder.glob("*.program")
    events.write_bytes(events.read_bytes()[:-10])
    (process,) = open_run(folder).processes
    assert len(process.events["program"]) == 8
    assert any(f"{events}, offset {8 * 72}" in problem for problem in process.problems)
    whole = (folder / "run.json").read_text()
    for wrong in ("", "[]", "{}", whole.replace("version 2", "version 3"), whole.replace('"lost"', '"last"'),
                  whole.replace('"exit_code": 0', '"exit_code": "x"'), whole.replace('"anchors"', '"anchor"'),
                  _with(whole, anchors=[]), _with(whole, anchors=[[1, 2]]), _with(whole, anchors=[[2, 2], [1, 1]]),
                  _with(whole, anchors=[[1, 2, 3], [4, 5, 6]]), _with(whole, anchors=[[1 << 64, 1], [1 << 65, 2]]),
                  _with(whole, readings=[[2, 1, 0]]), _with(whole, readings=[["nan", 1, 1]]),
                  _with(whole, readings=[[5, 5, 5], [1, 1, 1]]), _with(whole, readings=7)):  # fmt: skip
        (folder / "run.json").write_text(wrong)
        with raises(RecorderError, names=("run.json",)):
            open_run(folder)
    (folder / "run.json").write_text(whole)
    (recorder,) = folder.glob("*.recorder")
    recorder.write_bytes(b"something else")
    with raises(RecorderError, names=(str(recorder),)):
        open_run(folder)


def test_a_process_that_outlives_the_command_is_saved_so_far(tmp_path: Path) -> None:
    program = """
import os, time
from hocket import observe
observe.mark("parent")
if os.fork() == 0:
    observe.mark("child")
    time.sleep(20)
    os._exit(0)
time.sleep(0.5)
"""
    began_s = time.monotonic()
    recording = record_run(_python(program), tmp_path / "run")
    assert recording.num_processes == 2 and time.monotonic() - began_s < scaled(15)
    assert all(len(process.events["program"]) == 1 for process in open_run(tmp_path / "run").processes)


def test_a_later_run_removes_what_a_killed_agent_left(tmp_path: Path, memory: Path) -> None:
    ready = tmp_path / "ready"
    program = f"import os, time\nopen({str(ready)!r}, 'w').close()\nparent = os.getppid()\n"
    program += "while os.getppid() == parent: time.sleep(0.05)"
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "killed"), "--"]
    with subprocess.Popen([*command, *_python(program)]) as agent:
        while not ready.exists():
            assert agent.poll() is None
            time.sleep(0.02)
        (left,) = _left_in(memory)
        os.utime(memory / left, (0, 0))
        record_run(["true"], tmp_path / "beside")
        assert _left_in(memory) == {left}, "an agent that runs keeps its folder"
        agent.kill()
        agent.wait(scaled(30))
        os.utime(memory / left, (0, 0))
    record_run(["true"], tmp_path / "later")
    assert _left_in(memory) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_to_the_agent_reach_the_command(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
import signal, time
def end(*_): raise SystemExit(9)
signal.signal({int(number)}, end)
print("ready", flush=True)
time.sleep(100)
"""
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "run"), "--"]
    with subprocess.Popen([*command, *_python(program)], stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None and agent.stdout.readline() == "ready\n"
            agent.send_signal(number)
            assert agent.wait(scaled(30)) == 9
        finally:
            agent.kill()
    assert open_run(tmp_path / "run").description.exit_code == 9


@pytest.mark.parametrize("options", [["--mount-proc"], []])
def test_a_program_in_a_container_that_counts_processes_anew(tmp_path: Path, options: list[str]) -> None:
    program = """
import os, time
from hocket import observe
assert os.getpid() == 1
for step in range(20):
    with observe.region("inside", step=step):
        time.sleep(0.05)  # several looks of the agent
"""
    recording = record_run(["unshare", "--pid", "--fork", *options, *_python(program)], tmp_path / "run")
    assert (recording.exit_code, recording.problems) == (0, ())
    (inside,) = (each for each in open_run(tmp_path / "run").processes if len(each.events["program"]))
    assert inside.snapshot.owner.pid == 1 and inside.snapshot.owner.has_ended
    assert inside.events["program"]["aux"].tolist() == list(range(20))


BUDGET = "HOCKET_RECORDER_BUDGET"


@pytest.mark.parametrize(
    ("name", "value"), [(BUDGET, "much"), (BUDGET, "-1"), (BUDGET, "1e999"), (BUDGET, "nan"), ("HOCKET_RECORDER", "0")]
)
def test_variables_that_would_leave_nothing_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with raises(InvalidArgument, names=(name, value)):
        record_run(["true"], tmp_path / "run")


def test_a_disk_that_is_full_leaves_the_exit_code_and_says_so(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True, timeout=30)
    try:
        program = "import sys\nfor _ in range(3000): open('/etc/hostname').read()\nsys.exit(5)"
        recording = record_run(_python(program), small / "run")
        assert recording.exit_code == 5
        assert any(str(small / "run") in problem and "space" in problem for problem in recording.problems)
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=30)


def test_files_that_are_missing_or_of_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record_run(_python("open('/etc/hostname').read()"), folder)
    assert open_run(folder).problems == () and open_run(folder).processes[0].problems == ()
    (events,) = folder.glob("*.io")
    content = events.read_bytes()
    for wrong in (b"", content[: 72 * 5], content + content[:72], bytes(range(72)) * (len(content) // 72)):
        events.write_bytes(wrong)
        problems = open_run(folder).processes[0].problems
        assert problems and str(events) in problems[0]
    events.unlink()
    events.mkdir()
    assert str(events) in open_run(folder).processes[0].problems[0]
    (recorder,) = folder.glob("*.recorder")
    recorder.unlink()
    run = open_run(folder)
    assert run.processes == () and str(recorder) in run.problems[0]


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with raises(RecorderError, names=(str(tmp_path / "nothing"),)):
        open_run(tmp_path / "nothing")
    with raises(RecorderError, names=(str(tmp_path),)):
        open_run(tmp_path)
    (tmp_path / "recording").touch()
    with raises(RecorderError, names=(str(tmp_path),)):
        open_run(tmp_path)


def test_nothing_is_left_of_a_run_that_was_refused(tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("no_such_program",)):
        record_run(["no_such_program"], tmp_path / "run")
    with raises(InvalidArgument, names=("sound",)):
        record_run(["true"], tmp_path / "again", layers=["sound"])
    assert list(tmp_path.iterdir()) == []


def test_runs_that_begin_in_the_same_second(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--", "true"]
    started = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) for _ in range(4)]
    assert [(each.wait(scaled(60)), each.communicate()[1])[0] for each in started] == [0] * 4
    assert len([open_run(folder) for folder in tmp_path.iterdir()]) == 4


def test_a_folder_on_a_disk_is_taken_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {place.split()[1]: place.split()[2] for place in Path("/proc/mounts").read_text().splitlines()}
    assert kinds["/dev/shm"] == "tmpfs" and is_in_memory(Path("/dev/shm")) and not is_in_memory(Path("/proc"))
    on_disk = not is_in_memory(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert memory_folder() == (Path("/dev/shm") if on_disk else tmp_path)


def test_a_recorder_on_a_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.observe.agent.memory_folder", lambda: tmp_path)
    monkeypatch.setattr("hocket.observe.agent.is_in_memory", lambda folder: False)
    recording = record_run(["true"], tmp_path / "run")
    assert any(str(tmp_path) in problem for problem in recording.problems)
