"""Series of processes and of the host in a recorded run, beside what the processes and the kernel say themselves."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.observe import SERIES_STATES, SavedProcess, open_run, record_run
from hocket.observe.analysis.hangs import state_of
from hocket.observe.series import PROCESS_NUMBERS, SeriesWriter, read_process_rows

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(120)

# Waits until the agent has written some rows, by looking at the file in which it writes them.
_WAIT = """
import glob, os, sys, time
def await_rows(count):
    pattern = os.path.join(sys.argv[1], f"*-{os.getpid()}-*.series")
    def num_rows():
        return sum(os.path.getsize(path) // 105 for path in glob.glob(pattern))
    wanted, deadline = num_rows() + count, time.monotonic() + float(sys.argv[2])
    while num_rows() < wanted:
        assert time.monotonic() < deadline, "the agent wrote no row"
        time.sleep(0.02)
"""


def _record(program: str, folder: Path, **settings: float) -> list[SavedProcess]:
    command = [sys.executable, "-c", _WAIT + program, str(folder), str(scaled(30))]
    recording = record_run(command, folder, **{"interval_s": 0.05, **settings})  # type: ignore[arg-type]
    assert (recording.exit_code, recording.problems) == (0, ())
    run = open_run(folder)
    assert run.problems == () and all(process.problems == () for process in run.processes)
    return list(run.processes)


def _states(process: SavedProcess) -> list[str]:
    return [SERIES_STATES[state] for state in process.series["state"]]


def test_rows_agree_with_what_the_process_and_its_parent_see(tmp_path: Path) -> None:
    program = """
import json, resource, threading
from hocket import observe
observe.mark("begun")
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(3)]
for thread in threads:
    thread.start()
await_rows(3)
stop.set()
for thread in threads:
    thread.join()
block = bytearray(40 << 20)
await_rows(3)
del block
data = os.path.join(os.path.dirname(sys.argv[1]), "data")
with open(data, "wb", buffering=0) as file:
    file.write(bytes(3_000_000))
with open(data, "rb", buffering=0) as file:
    file.read()
usage = resource.getrusage(resource.RUSAGE_SELF)
of_main = resource.getrusage(resource.RUSAGE_THREAD)
own = {"cpu_s": usage.ru_utime + usage.ru_stime, "minor_faults": usage.ru_minflt,
       "voluntary_switches": of_main.ru_nvcsw, "forced_switches": of_main.ru_nivcsw}
with open("/proc/self/io") as file:
    io = dict(line.split(": ") for line in file)
own |= {"read_nbytes": int(io["rchar"]), "written_nbytes": int(io["wchar"])}
with open(data + ".json", "w") as file:
    json.dump(own, file)
"""
    before, began_ns = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic_ns()
    (process,) = _record(program, tmp_path / "run")
    after, ended_ns = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic_ns()
    own, rows = json.loads((tmp_path / "data.json").read_text()), process.series
    last = {name: float(rows[name][-1]) for name in rows.dtype.names or ()}
    assert _states(process)[-1] == "ended" and "ended" not in _states(process)[:-1]
    assert began_ns < rows["time_ns"][0] and rows["time_ns"][-1] < ended_ns and np.all(np.diff(rows["time_ns"]) > 0)
    for name, value in own.items():
        assert last[name] >= value, name
        assert np.all(np.diff(rows[name][:-1]) >= 0), name
    assert last["cpu_s"] <= after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + 1e-6
    assert last["minor_faults"] <= after.ru_minflt - before.ru_minflt
    assert last["written_nbytes"] >= 3_000_000 and last["read_nbytes"] >= 3_000_000
    assert last["written_nbytes"] - own["written_nbytes"] < 100_000  # the small file, and what Python's end writes
    assert max(rows["num_threads"]) >= 4 and last["num_threads"] < max(rows["num_threads"])
    assert max(rows["resident_nbytes"]) - min(rows["resident_nbytes"]) > 39 << 20


def test_times_are_those_of_the_events(tmp_path: Path) -> None:
    program = """
from hocket import observe
await_rows(2)  # the file has a head, which looks like a row while there is none
for _ in range(3):
    observe.counter("now", time.monotonic_ns())
    await_rows(2)
"""
    (process,) = _record(program, tmp_path / "run")
    at_s = process.clock.seconds(process.events["program"]["t_begin"])
    says_ns = process.events["program"]["aux"].view("<f8")
    times_s = process.clock.seconds_at_ns(process.series["time_ns"])
    for begin_s, end_s in ((at_s[0], at_s[1]), (at_s[1], at_s[2]), (at_s[2], times_s[-1])):
        assert np.count_nonzero((times_s > begin_s) & (times_s <= end_s)) >= 2
    # What the program read of the monotonic clock just before each event has the same place on the axis.
    said_s = process.clock.seconds_at_ns(says_ns)
    assert np.all(said_s <= at_s + 1e-4) and np.all(said_s[1:] > at_s[:-1])


def test_what_is_seen_of_a_process_after_it_said_how_it_ends_is_left_out(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "p.series", "process", "p", PROCESS_NUMBERS, has_state=True)
    for at, state, cpu_s in ((1, "running", 0.1), (3, "running", 0.3), (2, "ended", 0.2)):  # it is written last
        writer.append(at, {"cpu_s": cpu_s}, state)
    problems: list[str] = []
    rows = read_process_rows(tmp_path / "p.series", problems)
    assert [SERIES_STATES[row["state"]] for row in rows] == ["running", "ended"]
    assert rows["cpu_s"].tolist() == [0.1, 0.2] and problems == []


def test_the_shortest_processes_have_a_row(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(12_345))
    command = ["sh", "-c", f"for i in 1 2 3 4 5 6; do cat {tmp_path}/data > /dev/null; done"]
    record_run(command, tmp_path / "run", interval_s=10)
    processes = [
        each for each in open_run(tmp_path / "run").processes if each.snapshot.owner.program.startswith("cat ")
    ]
    assert len(processes) == 6
    for process in processes:
        assert _states(process)[-1] == "ended"
        assert process.series["read_nbytes"][-1] >= 12_345 and process.series["cpu_s"][-1] > 0


def test_what_nobody_could_read_is_no_number(tmp_path: Path) -> None:
    program = (
        _WAIT + "import signal\nfrom hocket import observe\nobserve.mark('x')\nawait_rows(2)\nos.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run"), str(scaled(30))]
    record_run(command, tmp_path / "run", interval_s=0.05)
    (process,) = open_run(tmp_path / "run").processes
    assert process.snapshot.end_status is None and _states(process)[-1] == "ended"
    numbers = process.series.dtype.names[2:]
    assert all(np.isnan(process.series[name][-1]) and process.series[name][0] >= 0 for name in numbers)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user() -> None:
    program = """
import os, sys
from pathlib import Path
import numpy as np
from hocket.observe.drain import Drain
from hocket.observe.processes import process_status
from hocket.observe.sampler import RunSampler
from hocket.observe.series import read_process_rows
from hocket.trace import Owner
os.setgroups([]); os.setgid(65534); os.setuid(65534)
folder = Path(sys.argv[1])
sampler, drain = RunSampler(folder, 1), Drain("p", folder / "p", folder)
drain.owner = Owner(1, process_status(1).started, 0, "", "", "", None, None, False, 0)
sampler.see(drain)
problems = []
(row,) = read_process_rows(folder / "p.series", problems)
assert not problems
print(*(name for name in row.dtype.names if np.isnan(row[name])))
"""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o777)
        command = [sys.executable, "-c", program, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["read_nbytes", "written_nbytes", "device_read_nbytes", "device_written_nbytes"]


def test_events_and_rows_of_a_process_that_replaces_itself_after_it_was_seen(tmp_path: Path) -> None:
    program = """
from hocket import observe
for step in range(200):
    observe.mark(os.environ.get("TURN", "first"), step)
await_rows(2)
if "TURN" not in os.environ:
    os.environ["TURN"] = "second"
    os.execv(sys.executable, sys.orig_argv)
"""
    first, second = sorted(_record(program, tmp_path / "run"), key=lambda each: each.snapshot.anchor)
    assert first.snapshot.owner.pid == second.snapshot.owner.pid
    for process, name in ((first, "first"), (second, "second")):
        assert [each.text for each in process.snapshot.definitions if each.kind == "region"] == [name]
        marks = process.events["program"]
        assert len(marks) + process.lost.get("program", 0) == process.snapshot.rings["program"].recorded == 200
        assert len(marks) == 200
    assert _states(first)[-1] == "replaced" and _states(second)[-1] == "ended"
    assert (state_of(first), state_of(second)) == ("replaced", "ended")
    assert first.series["time_ns"][-1] < second.series["time_ns"][-1]


def test_the_host_and_its_network(tmp_path: Path) -> None:
    nbytes = 5_000_000
    with socket.create_server(("127.0.0.1", 0)) as server:

        def receive() -> None:
            peer, _ = server.accept()
            with peer:
                while peer.recv(1 << 20):
                    pass

        receiver = threading.Thread(target=receive, daemon=True)
        receiver.start()
        program = f"""
import socket
from hocket import observe
observe.mark("x")
await_rows(2)
with socket.create_connection(("127.0.0.1", {server.getsockname()[1]})) as peer:
    peer.sendall(bytes({nbytes}))
await_rows(2)
"""
        _record(program, tmp_path / "run")
        receiver.join(scaled(10))
    series = {(each.source, each.name): each.rows for each in open_run(tmp_path / "run").host_series}
    host, loopback = series["host", socket.gethostname()], series["network", "lo"]
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert set(host["memory_nbytes"]) == {int(total.split()[1]) * 1024}
    assert np.all((host["memory_available_nbytes"] > 0) & (host["memory_available_nbytes"] < host["memory_nbytes"]))
    used = sum(host[f"cpu_{name}_s"] for name in ("user", "nice", "system", "idle", "iowait"))
    passed_s = (host["time_ns"][-1] - host["time_ns"][0]) / 1e9
    assert 0 < used[-1] - used[0] < (passed_s + 1) * (os.cpu_count() or 1)
    assert loopback["sent_nbytes"][-1] - loopback["sent_nbytes"][0] >= nbytes
    assert np.array_equal(loopback["sent_nbytes"], loopback["received_nbytes"])


@pytest.mark.parametrize("interval_s", [0, -1, float("nan"), 0.001, float("inf"), 3601])
def test_intervals_that_are_refused(interval_s: float, tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("interval_s",)):
        record_run(["touch", str(tmp_path / "started")], tmp_path / "run", interval_s=interval_s)
    assert not (tmp_path / "started").exists()


def _head(**changes: object) -> bytes:
    whole = {"format": "hocket series, version 1", "source": "process", "name": "p", "fields": [["time_ns", "<i8"]]}
    return json.dumps({**whole, **changes}).encode() + b"\n"


def test_damaged_series(tmp_path: Path) -> None:
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    (path,) = (tmp_path / "run").glob("[0-9]*.series")
    whole = path.read_bytes()
    path.write_bytes(whole[:-105] + whole[-105:] * 3 + whole[-105:-40])
    (process,) = open_run(tmp_path / "run").processes
    assert len(process.series) == (len(whole) - whole.index(b"\n") - 1) // 105 + 2
    assert any(f"{path}, offset {len(whole) + 2 * 105}:" in problem for problem in process.problems)
    path.write_bytes(whole[:-97] + b"\xc8" + whole[-96:])  # a state that there is not
    (process,) = open_run(tmp_path / "run").processes
    assert len(process.series) == (len(whole) - whole.index(b"\n") - 1) // 105 - 1
    assert any(str(path) in problem for problem in process.problems)
    wrong = [
        b"", b"\n", b"{}", b"\xff" * 100_000, b"[" * 60_000 + b"\n", _head(), _head(source="host"), _head(source=3),
        _head(format="hocket series, version 2"), _head(fields=[["time_ns", "O"]]), _head(fields=[]),
        _head(fields=[["time_ns", "<i8"], ["time_ns", "<f8"]]), _head(fields=[["time_ns", "<i8"], ["x", "<f8,<f8"]]),
        _head(fields=[["time_ns", "<i8"]] * 300), _head(fields={"time_ns": "<i8"}), _head(fields=[["time_ns", None]]),
    ]  # fmt: skip
    for content in wrong:
        path.write_bytes(content)
        (process,) = open_run(tmp_path / "run").processes
        assert len(process.series) == 0 and len(process.problems) == 1, content[:100]
        assert str(path) in process.problems[0]
    path.unlink()
    (process,) = open_run(tmp_path / "run").processes
    assert len(process.series) == 0 and process.problems == ()


def test_any_damage_leaves_numbers_or_a_problem(tmp_path: Path) -> None:
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    paths = list((tmp_path / "run").glob("*.series"))
    whole = [path.read_bytes() for path in paths]
    rng = random.Random(1)
    for _ in range(60):
        for path, content in zip(paths, whole, strict=True):
            damaged = bytearray(content[: rng.randrange(len(content) + 1)])
            for _ in range(rng.randrange(4)):
                if damaged:
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged)
        run = open_run(tmp_path / "run")
        assert all(np.all(np.diff(each.rows["time_ns"]) >= 0) for each in run.host_series)
        problems = [*run.problems, *(problem for process in run.processes for problem in process.problems)]
        assert all(any(str(path) in problem for path in paths) for problem in problems)
