"""Runs on several hosts: agents join over the network, clocks are compared, and nothing of strangers is believed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from hocket.clock import ClockLine, ClockReading
from hocket.errors import InvalidArgument, RecorderError
from hocket.observe import ObservedRun, RunClock, SavedProcess, join_run, open_run, record_run
from hocket.observe.host_collector import HostCollector, parse_address
from hocket.observe.run_clock import AnchorSeries
from hocket.observe.sealed_stream import VERSION

from ..load import scaled
from ..naming import raises
from .joined_hosts import agent_of, free_port, join, joined, leaves, memory_beside, receive_all, started, waits_for

pytestmark = pytest.mark.timeout(120)
SHIFT_S = 1000
PROGRAM = """
import sys, time
from hocket import observe
observe.mark  # names are loaded on first use, which takes some time
for number in range(5):
    time.sleep(0.05)
    before = time.clock_gettime_ns(time.CLOCK_REALTIME)
    observe.mark(f"{before} {sys.argv[1]}", step=number)
"""


@pytest.fixture(autouse=True)
def _all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")
    monkeypatch.setenv("HOCKET_SECRET", "the secret of these tests")


def _program(name: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, name]


def _lives_with_its_agent(ready: Path) -> list[str]:
    program = f"import os, time\nparent = os.getppid()\n{leaves(ready)}while os.getppid() == parent: time.sleep(0.05)"
    return [sys.executable, "-c", program]


def _marks(process: SavedProcess) -> tuple[list[float], list[float], str]:
    """When this process made its marks: by the run's clock, and by the calendar, which all hosts here share."""
    names = {each.id: each.text for each in process.snapshot.definitions if each.kind == "region"}
    events = process.events["program"]
    texts = [names[int(event["comm"])].split() for event in events]
    return process.clock.seconds(events["t_begin"]).tolist(), [int(each) * 1e-9 for each, _ in texts], texts[0][1]


def test_a_host_whose_clock_is_a_thousand_seconds_ahead(tmp_path: Path) -> None:
    port = free_port()
    namespace = ["unshare", "--time", "--monotonic", str(SHIFT_S), "--fork"]
    ready = tmp_path / "ready"
    with started([*namespace, *joined(port, sys.executable, "-c", PROGRAM + leaves(ready), "other")]) as other:
        program = PROGRAM + waits_for(ready)
        recording = record_run([sys.executable, "-c", program, "first"], tmp_path / "run", listen=f"127.0.0.1:{port}")
        output = other.communicate(timeout=scaled(60))
        assert other.returncode == 0, output
    assert (recording.exit_code, recording.num_hosts, recording.problems) == (0, 2, ())
    run = open_run(tmp_path / "run")
    (second,) = run.other_hosts
    ahead_s = ClockLine([ClockReading(*each) for each in second.readings]).ahead(second.anchors[0][1]) * 1e-9
    assert abs(ahead_s + SHIFT_S) < 1
    found = {name: (seconds, calendar) for seconds, calendar, name in map(_marks, run.processes)}
    assert set(found) == {"first", "other"}
    error_s = max(process.clock.error_s for process in run.processes)
    assert 0 < error_s < 1
    begin_s = found["first"][1][0] - found["first"][0][0]
    for seconds, calendar in found.values():
        late_s = np.array(seconds) - (np.array(calendar) - begin_s)  # the calendar was read before the mark was made
        assert (late_s > -error_s - 1e-3).all() and late_s.min() < error_s + 1e-3


def test_one_task_of_a_host_records_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))  # other programs on this machine may be recorded meanwhile
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))
    port = free_port()
    ended = [tmp_path / name for name in "abc"]
    programs = [
        [sys.executable, "-c", PROGRAM + leaves(path) + f"raise SystemExit({code})", path.name]
        for path, code in zip(ended, (0, 0, 3), strict=True)
    ]
    follower = [sys.executable, "-m", "hocket.cli", "observe", "run", "--", *programs[1]]
    with (
        started(joined(port, *programs[0])) as a,
        started(follower, HOCKET_OBSERVE_JOIN=f"127.0.0.1:{port}") as b,
        started(joined(port, *programs[2])) as c,
    ):
        first = [sys.executable, "-c", waits_for(*ended)]
        recording = record_run(first, tmp_path / "run", listen=f"127.0.0.1:{port}")
        outputs = [each.communicate(timeout=scaled(60)) for each in (a, b, c)]
    assert [each.returncode for each in (a, b, c)] == [0, 0, 3], outputs
    assert recording.problems == ()
    run = open_run(tmp_path / "run")
    names = sorted(_marks(process)[2] for process in run.processes if len(process.events["program"]))
    assert names == ["a", "b", "c"]
    assert sum("sent to the first host" in error for _, error in outputs) == len(run.other_hosts)
    assert len(run.other_hosts) < 3
    memory.rmdir()  # nothing is left in it


def test_a_task_of_a_recorded_command_is_recorded_once(tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "hocket.cli", "observe", "run", "--", *_program("inner")]
    recording = record_run(inner, tmp_path / "run")
    assert recording.exit_code == 0
    marks = [_marks(each)[2] for each in open_run(tmp_path / "run").processes if len(each.events["program"])]
    assert marks == ["inner"]


def test_a_joined_agent_that_is_killed_is_reported_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.observe.host_collector.SILENCE_S", 5.0)
    port = free_port()
    ready = tmp_path / "ready"
    with started(joined(port, *_lives_with_its_agent(ready))) as other:
        program = PROGRAM + waits_for(ready) + f"import signal; os.kill({other.pid}, signal.SIGKILL)"
        recording = record_run([sys.executable, "-c", program, "first"], tmp_path / "run", listen=f"127.0.0.1:{port}")
        other.wait(scaled(30))
    assert (recording.exit_code, recording.num_hosts) == (0, 1)
    (problem,) = recording.problems
    assert f"host {socket.gethostname()}" in problem
    processes = [each for each in open_run(tmp_path / "run").processes if len(each.events["program"])]
    assert [_marks(each)[2] for each in processes] == ["first"]
    assert not [*(tmp_path / "run").glob("part-of-*")]


def test_the_recording_stays_where_the_first_host_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    port = free_port()
    first = [sys.executable, "-m", "hocket.cli", "observe", "run", "--listen", f"127.0.0.1:{port}", "--output",
             str(tmp_path / "run"), "--", "sleep", "3600"]  # fmt: skip
    with started(first) as process:
        program = PROGRAM + f"import os, signal; os.kill({process.pid}, signal.SIGKILL)"
        with started(joined(port, sys.executable, "-c", program, "other")) as other:
            _, error = other.communicate(timeout=scaled(60))
    assert other.returncode != 0
    (kept,) = tmp_path.glob("hocket-joined-run-*")
    assert str(kept) in error
    (mine,) = open_run(kept).processes
    assert _marks(mine)[2] == "other"


def test_a_wrong_secret_and_a_wrong_server_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        monkeypatch.setenv("HOCKET_SECRET", "another secret than that")
        with raises(RecorderError, names=collector.name):
            join_run(["true"], collector.name, timeout=scaled(5))
        assert collector.problems == []
    with socket.create_server(("127.0.0.1", 0)) as mute:
        name = f"127.0.0.1:{mute.getsockname()[1]}"
        with raises(RecorderError, names=name):
            join_run(["true"], name, timeout=0.5)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    "file",
    [["../run.json", 0, 1], ["/etc/passwd", 0, 1], ["", 0, 1], [".", 0, 1], ["a/b", 0, 1], ["live", 0, 1],
     ["name", 0, -1], ["name", 0, 1 << 50], ["name", 1, 1], ["name", -1, 1], ["x.io", 1, 1], ["name"], ["name", 1],
     "name", ["name", 0, "1"], ["name", 0, True], ["name", False, 1], ["n" * 300, 0, 1], [None, 0, 1]],
)  # fmt: skip
def test_files_with_bad_names_or_sizes_are_refused(tmp_path: Path, file: object) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with HostCollector("127.0.0.1", 0, target, memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "../../evil")
        stream.send_object("file", file, 5.0)
        with pytest.raises(ConnectionError):  # the collector closes the connection
            receive_all(stream)
        collector.wait_for_hosts()
        assert len(collector.problems) == 1
    assert list(target.iterdir()) == []
    assert sorted(tmp_path.iterdir()) == [tmp_path / "memory", target]
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"{}", b'{"join": 1}', b'{"a": 1, "b": 2}', b"\xff" * 100, b"[" * 9999]
)
def test_other_first_messages_are_refused(tmp_path: Path, message: bytes) -> None:
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        stream.send(message, 5.0)
        with pytest.raises(ConnectionError):
            stream.receive(scaled(10))
    assert list((tmp_path / "run").iterdir()) == []


def test_strangers_do_not_keep_others_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        host, port = parse_address(collector.name, needs_port=True)
        strangers = [socket.create_connection((host, port)) for _ in range(40)]
        for number, stranger in enumerate(strangers):
            if number % 2:
                stranger.sendall(rng.bytes(300))
        stream = agent_of(collector)
        join(stream, "friend")
        for stranger in strangers:
            stranger.close()
        stream.send_object("end", None, 5.0)
        assert receive_all(stream, until="kept")
        assert collector.num_kept == 1 and collector.problems == []


@pytest.mark.parametrize(
    "text", ["", ":1", "host", "host:", "host:0", "host:99999", "a:b:1", "[::1", "[::1]", "host:1x"]
)
def test_bad_addresses(text: str) -> None:
    with raises(InvalidArgument, names=repr(text)):
        join_run(["true"], text)


def test_an_address_of_another_host_cannot_be_listened_at(tmp_path: Path) -> None:
    with raises(InvalidArgument, names="192.0.2.1"):
        record_run(["true"], tmp_path / "run", listen="192.0.2.1:1234")


def test_a_clock_of_hours_follows_a_drift_that_changes() -> None:
    """Against the function that the readings were made from."""
    rng = np.random.default_rng(7)
    times_ns = np.arange(0, 3600 * 4, 10.0) * 1e9

    def theirs(at: np.ndarray) -> np.ndarray:
        return at + 5e9 + 20e-6 * at + 2e5 * np.sin(at / 2e12)

    errors = rng.uniform(-20e3, 20e3, len(times_ns))
    readings = [
        ClockReading(at - 30e3, float(theirs(at)) + error, at + 30e3)
        for at, error in zip(times_ns, errors, strict=True)
    ]
    anchors = [(int(at) * 3 + 17, int(at)) for at in times_ns]
    clock = RunClock(anchors, readings, origin_ns=1_000_000_000)
    at_ns = rng.uniform(0, times_ns[-1], 1000)
    found = clock.seconds(at_ns * 3 + 17)
    expected = (theirs(at_ns) - 1e9) * 1e-9
    assert np.abs(found - expected).max() <= clock.error_s < 200e-6
    assert found.shape == at_ns.shape


def test_anchors_of_a_long_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100_000))
    monkeypatch.setattr("hocket.observe.run_clock.monotonic", lambda: float(next(now)))
    series = AnchorSeries()
    for _ in range(20_000):
        series.take()
    assert 128 <= len(series.anchors) <= 257
    assert series.anchors == sorted(series.anchors)


def test_times_of_a_run_are_those_of_its_own_clock(tmp_path: Path) -> None:
    recording = record_run(_program("alone"), tmp_path / "run")
    assert recording.num_hosts == 1
    run: ObservedRun = open_run(tmp_path / "run")
    (process,) = run.processes
    seconds, calendar, _ = _marks(process)
    assert process.clock.error_s == 0.0 and process.host == socket.gethostname()
    late_s = np.diff(seconds) - np.diff(calendar)
    assert np.abs(late_s).max() < 0.05
    assert 0 < seconds[0] < run.description.ended_s - run.description.began_s


def test_a_host_that_breaks_off_after_the_command_of_the_first_one_comes_again(tmp_path: Path) -> None:
    """One that has not joined before is refused then, with a reason."""
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        waits = threading.Thread(target=collector.wait_for_hosts)
        waits.start()
        while not collector._is_late.is_set():
            assert waits.is_alive()
        stream.shut_down()
        waits.join(1.0)
        assert waits.is_alive() and len(collector.problems) == 1
        late = agent_of(collector)
        late.send_object("join", {"host": "late", "version": VERSION, "agent": "a late one"}, 5.0)
        kind, text = late.receive_object(scaled(10))
        assert kind == "refused" and "late" in text
        stream = agent_of(collector)
        join(stream, "far")
        stream.send_object("end", None, 5.0)
        assert receive_all(stream, until="kept")
        waits.join(scaled(10))
        assert not waits.is_alive()
        (problem,) = collector.problems
        assert problem.startswith("host late:") and collector.num_kept == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["host-1-far"]


def test_a_known_host_comes_again_when_no_further_host_may_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.observe.host_collector._MOST_HOSTS", 1)
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        more = agent_of(collector)
        more.send_object("join", {"host": "more", "version": VERSION, "agent": "one more"}, 5.0)
        kind, text = more.receive_object(scaled(10))
        assert kind == "refused" and "more" in text
        stream.shut_down()
        stream = agent_of(collector)
        join(stream, "far")
        stream.send_object("end", None, 5.0)
        assert receive_all(stream, until="kept")
        assert collector.num_kept == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["host-1-far"]


def test_a_host_that_does_not_come_again_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.observe.host_collector.SILENCE_S", 1.0)
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        stream.shut_down()
        deadline_s = monotonic() + scaled(10)
        while not collector.problems:
            assert monotonic() < deadline_s
        began_s = monotonic()
        collector.wait_for_hosts()
        assert 0.5 < monotonic() - began_s < scaled(10)
        (problem,) = collector.problems
        assert "host far" in problem


def test_interrupt_ends_the_wait_for_other_hosts(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", "--listen", f"127.0.0.1:{port}", "--output",
               str(tmp_path / "run"), "--"]  # fmt: skip
    ready = tmp_path / "ready"
    with (
        started([*command, sys.executable, "-c", waits_for(ready)]) as first,
        started(joined(port, *_lives_with_its_agent(ready))) as other,
    ):
        while not ready.exists():
            assert first.poll() is None and other.poll() is None
        deadline = scaled(30)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(2.0)
        first.send_signal(signal.SIGINT)
        _, error = first.communicate(timeout=deadline)
        other.kill()
        other.wait(deadline)
    assert first.returncode == 0
    assert f"host {socket.gethostname()}" in error
    assert open_run(tmp_path / "run").description.exit_code == 0
