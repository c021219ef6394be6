"""NCCL's profiler plugin, driven by a program in the place of NCCL: what is read from outside is what was driven.

There is no GPU here. `nccl_program.cpp` calls the plugin in the order and from the threads of NCCL's own sources.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hocket import _native
from hocket.errors import RecorderError
from hocket.observe import JobWatcher, RunRecording, SavedProcess, find_job, open_run, record_run
from hocket.observe.nccl import FIRST_VERSION, plugin_problem, read_nccl
from hocket.observe.run import hooks_library, recording_environment
from hocket.trace import EVENT_STATES, read_recorder
from hocket.trace.record import END_UNKNOWN

from ..load import scaled
from ..naming import raises
from .mpi_jobs import kind_name

pytestmark = pytest.mark.timeout(120)
VERSIONS = pytest.mark.parametrize("version", ["4", "5", "6"])
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`nccl_program.cpp`, compiled."""
    path = tmp_path_factory.mktemp("nccl") / "nccl_program"
    command = ["c++", "-std=c++20", "-O1", str(HERE / "nccl_program.cpp"), "-o", str(path), "-pthread", "-ldl"]
    subprocess.run(command, check=True, timeout=scaled(100))
    return path


def _record(program: Path, version: str, scenario: str, folder: Path) -> SavedProcess:
    recording: RunRecording = record_run([str(program), version, scenario], folder / "run", layers=["comm"])
    assert (recording.exit_code, recording.problems, recording.num_lost) == (0, (), 0)
    (process,) = open_run(folder / "run").processes
    return process


def _events(process: SavedProcess, label: str) -> np.ndarray:
    events = process.events["foreign"]
    names = [process.snapshot.names["communicator", int(event["comm"]), 0] for event in events]
    return events[[name == label for name in names]]


def _row(event: np.void) -> tuple[str, int, int, str, int]:
    dtype = _native.DTYPE_NAMES[int(event["dtype"])]
    return kind_name(int(event["kind"])), int(event["nbytes"]), int(event["peer"]), dtype, int(event["seq"])


@VERSIONS
def test_every_function(program: Path, version: str, tmp_path: Path) -> None:
    process = _record(program, version, "every_function", tmp_path)
    events = _events(process, "NCCL tp 0xabc")
    assert [_row(event) for event in events] == [
        ("all_reduce", 4000, -1, "float32", 1), ("broadcast", 64, 3, "int8", 2), ("reduce", 80, 1, "float64", 3),
        ("all_gather", 48, -1, "int8", 4), ("reduce_scatter", 5 * 2 * 4, -1, "bfloat16", 5),
        ("all_to_all", 6 * 4 * 4, -1, "int32", 6), ("gather", 14, 0, "float16", 7),
        ("scatter", 8 * 8 * 4, 1, "uint64", 8), ("scatter", 0, 2, "uint64", 9), ("all_reduce", 9, -1, "uint8", 10),
        ("all_reduce", 9, -1, "uint8", 11), ("other", 24, -1, "int64", 12),
        ("send", 80, 2, "float32", 1), ("recv", 120, 0, "float32", 2),
    ]  # fmt: skip
    assert {EVENT_STATES[state] for state in events["state"]} == {"completed"}
    assert not (events["flags"] & END_UNKNOWN).any()
    # Issued, then begun by the kernel, then ended.
    assert (events["t_begin"] <= events["aux"]).all() and (events["aux"] <= events["t_end"]).all()
    comm = int(events[0]["comm"])
    (defined,) = [each for each in process.snapshot.communicators.values() if each.id == comm]
    assert defined.extra == 1  # the rank in the communicator
    assert process.snapshot.names["backend", comm, 0] == "nccl"
    assert process.snapshot.names["algorithm", comm, int(events[0]["algorithm"])] == "RING LL128"
    assert events[-1]["algorithm"] == 0
    totals = process.snapshot.histograms
    assert int(totals["count"].sum()) == 14 and int(totals["nbytes"].sum()) == int(events["nbytes"].sum())


@VERSIONS
def test_orders_of_channels(program: Path, version: str, tmp_path: Path) -> None:
    process = _record(program, version, "orders", tmp_path)
    first, second = _events(process, "NCCL first 0x1"), _events(process, "NCCL 0x2")
    assert [(int(event["nbytes"]), int(event["seq"])) for event in first] == [(4, 1), (8, 2), (12, 3)]
    assert [(int(event["nbytes"]), int(event["seq"])) for event in second] == [(16, 1)]
    for events in (first, second):
        assert {EVENT_STATES[state] for state in events["state"]} == {"completed"}
        assert not (events["flags"] & END_UNKNOWN).any()
    # Channels end in the reverse order of their begin: the other communicator's last one before this one's.
    assert second[0]["t_end"] < first[2]["t_end"] and second[0]["aux"] > first[2]["aux"]


@VERSIONS
def test_operations_whose_end_nobody_says(program: Path, version: str, tmp_path: Path) -> None:
    process = _record(program, version, "unfinished", tmp_path)
    states = {
        label: [(EVENT_STATES[event["state"]], bool(event["flags"] & END_UNKNOWN)) for event in _events(process, label)]
        for label in ("NCCL silent 0x3", "NCCL lossy 0x4", "NCCL aborted 0x5")
    }
    assert Counter(states["NCCL silent 0x3"]) == {("completed", True): 1030}
    # The first one has no channel, but operations long after it have ended; the eleventh was in flight at the end.
    assert states["NCCL lossy 0x4"][0] == ("completed", True)
    assert Counter(states["NCCL lossy 0x4"]) == {("completed", False): 18, ("completed", True): 2}
    assert states["NCCL aborted 0x5"] == [("completed", False), ("failed", True)]
    assert int(process.snapshot.histograms["count"].sum()) == 1030 + 20 + 2


@VERSIONS
def test_threads(program: Path, version: str, tmp_path: Path) -> None:
    process = _record(program, version, "threads", tmp_path)
    for thread in range(4):
        events = _events(process, f"NCCL thread {thread} {100 + thread:#x}")
        assert events["nbytes"].tolist() == events["seq"].tolist() == list(range(1, 501))
        assert {EVENT_STATES[state] for state in events["state"]} == {"completed"}
        assert not (events["flags"] & END_UNKNOWN).any()
    totals = process.snapshot.histograms
    assert int(totals["count"].sum()) == 2000 and int(totals["nbytes"].sum()) == 4 * sum(range(1, 501))


def test_copies_by_the_copy_engine(program: Path, tmp_path: Path) -> None:
    process = _record(program, "6", "copy_engine", tmp_path)
    (event,) = _events(process, "NCCL ce 0x6")
    assert _row(event) == ("all_gather", 10, -1, "int8", 1)
    assert EVENT_STATES[event["state"]] == "completed" and event["flags"] & END_UNKNOWN


@VERSIONS
def test_groups_of_hocket_are_left_out(program: Path, version: str, tmp_path: Path) -> None:
    process = _record(program, version, "groups_of_hocket", tmp_path)
    assert {each.text for each in process.snapshot.communicators.values()} == {"NCCL other 0x9", "NCCL program's 0xa"}
    assert len(process.events["foreign"]) == int(process.snapshot.histograms["count"].sum()) == 2


@VERSIONS
def test_what_hangs_is_seen_from_outside(program: Path, version: str, tmp_path: Path) -> None:
    environment = {**recording_environment(os.environ, tmp_path, ["comm"]), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [program, version, "hang"], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        view = JobWatcher(lambda: [place for each in processes for place in find_job(each.pid)]).look()
        first, second = view.ranks
        assert first.doing is not None and second.doing is None and view.problems == ()
        assert (first.doing.ring, first.doing.name, first.doing.target) == ("foreign", "all_reduce", "NCCL world 0x77")
        assert (first.doing.nbytes, first.doing.number, first.waits_for) == (800, 2, (1,))
        # A killed process leaves it to be read.
        processes[0].kill()
        processes[0].wait(scaled(20))
        (path,) = tmp_path.glob(f"hocket-recorder-*-{processes[0].pid}-*")
        events = read_recorder(path).rings["foreign"].events
        assert [(int(event["nbytes"]), EVENT_STATES[event["state"]], int(event["t_end"]) > 0) for event in events] == [
            (400, "completed", True), (800, "started", False)
        ]  # fmt: skip
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=scaled(20))


@VERSIONS
def test_programs_that_are_not_observed_are_asked_for_nothing(program: Path, version: str, tmp_path: Path) -> None:
    environment = {
        **os.environ, "NCCL_PROFILER_PLUGIN": str(hooks_library()), "HOCKET_RECORDER_FOLDER": str(tmp_path),
        "HOCKET_RECORDER_KEEP": "1",
    }  # fmt: skip
    environment.pop("HOCKET_OBSERVE", None)
    subprocess.run([program, version, "off"], env=environment, check=True, timeout=scaled(60))
    assert list(tmp_path.iterdir()) == []


def test_events_that_are_asked_for(program: Path, tmp_path: Path) -> None:
    environment = recording_environment(os.environ, tmp_path, ["comm"])
    masks = {
        version: int(subprocess.check_output([program, version, "mask"], env=environment, timeout=scaled(60)))
        for version in "456"
    }
    # Collectives, messages and channels of kernels; in version 6 also what the copy engine moves.
    assert masks == {"4": 2 | 4 | 64, "5": 2 | 4 | 64, "6": 2 | 4 | 64 | 4096}


def test_a_plugin_of_the_user_stays(tmp_path: Path) -> None:
    ours = str(hooks_library())
    assert recording_environment({}, tmp_path)["NCCL_PROFILER_PLUGIN"] == ours
    assert "NCCL_PROFILER_PLUGIN" not in recording_environment({}, tmp_path, ["io"])
    environment = {"NCCL_PROFILER_PLUGIN": "inspector"}
    assert recording_environment(environment, tmp_path)["NCCL_PROFILER_PLUGIN"] == "inspector"
    assert plugin_problem({"NCCL_PROFILER_PLUGIN": ours}) is None
    recording = record_run(["true"], tmp_path / "run", environment={**os.environ, **environment})
    assert any("NCCL_PROFILER_PLUGIN" in problem and "inspector" in problem for problem in recording.problems)


def test_versions_of_nccl(tmp_path: Path) -> None:
    # A shared object that has the text, at a place of its own.
    source = tmp_path / "library.c"
    for version, is_supported in (((2, 26, 5), False), ((2, 27, 3), True), ((2, 30, 7), True), ((3, 0, 0), True)):
        text = ".".join(map(str, version))
        source.write_text(f'const char text[] = "NCCL version %d.%d.%d\\0NCCL version {text}+cuda13.0";')
        library = tmp_path / f"libnccl-{text}.so"
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True, timeout=scaled(60))
        found = read_nccl(library)
        assert found.version == version and (found.problem is None) == is_supported == (version >= FIRST_VERSION)
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", tmp_path / "libnccl.so.2"], check=True, timeout=scaled(60))
    assert read_nccl(tmp_path / "libnccl.so.2").problem is not None
    with raises(RecorderError, names=("no-such-file",)):
        read_nccl(tmp_path / "no-such-file")
    with raises(RecorderError, names=(sys.executable + ".py",)):
        read_nccl(sys.executable + ".py")
