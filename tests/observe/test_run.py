"""`hocket observe run`: what is saved of programs that import hocket, fork, replace themselves or are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe import SavedProcess, open_run, record_run

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def _left_in_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("hocket-observe-", "hocket-recorder-"))}


def _of_communication(process: SavedProcess) -> np.ndarray:
    totals = process.snapshot.histograms
    return totals[totals["layer"] == 0]


def test_a_program_of_hocket_and_its_forked_child(tmp_path: Path) -> None:
    before = _left_in_memory()
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
    assert _left_in_memory() == before


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
    for wrong in ("", "[]", "{}", whole.replace("version 1", "version 2"), whole.replace('"lost"', '"last"'),
                  whole.replace('"exit_code": 0', '"exit_code": "x"')):  # fmt: skip
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
