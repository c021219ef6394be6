"""Runs on several hosts while they go on: what other hosts record is seen as it happens, and is whole at the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import RecorderError
from hocket.observe import StoreClient, join_run, open_run, record_run
from hocket.observe.host_collector import HostCollector
from hocket.observe.host_folder import HostFolder
from hocket.observe.host_growth import is_growing
from hocket.observe.saved import CLAIM_FILE, FOLLOWED_FILE, LIVE_FOLDER
from hocket.observe.sealed_stream import VERSION
from hocket.observe.store.followed_run import RunFollower, read_latest
from hocket.observe.store.run_tables import run_tables

from ..load import scaled
from ..naming import raises
from ..waiting import until
from .joined_hosts import agent_of, free_port, joined, leaves, memory_beside, receive_all, started, waits_for
from .stored_rows import served

pytestmark = pytest.mark.timeout(150)
PROGRAM = """
import os, sys, time
from hocket import observe
number, agent = 0, os.getppid()
while not os.path.exists(sys.argv[2]) and os.getppid() == agent:
    with observe.region(f"{sys.argv[1]} {number // 100}", step=number):
        time.sleep(0.004)
    number += 1
"""
KEEPS_ITS_FILES = """
import sys
from hocket.observe import join_run, recording
recording.rmtree = lambda *_, **__: None
assert join_run(sys.argv[2:], sys.argv[1]).exit_code == 0
"""
WAITS_SHORTLY = """
import sys
from hocket.observe import host_collector, record_run
host_collector.SILENCE_S = 5.0
recording = record_run(sys.argv[3:], sys.argv[1], listen=sys.argv[2])
print(*recording.problems, file=sys.stderr)
sys.exit(recording.exit_code)
"""


@pytest.fixture(autouse=True)
def _all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")
    monkeypatch.setenv("HOCKET_SECRET", "the secret of these tests")


def _program(name: str, over: Path) -> list[str]:
    return [sys.executable, "-c", f"# {name}{PROGRAM}", name, str(over)]


def _first(run: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "hocket.cli", "observe", "run", "--listen", f"127.0.0.1:{port}", "--output",
            str(run), "--"]  # fmt: skip


def _soon_silent(run: Path, port: int, *command: str) -> list[str]:
    """A first host that waits for others only shortly."""
    return [sys.executable, "-c", WAITS_SHORTLY, str(run), f"127.0.0.1:{port}", *command]


def _keeping(port: int, *command: str) -> list[str]:
    """An agent that joins, and leaves what it has sent where it was."""
    return [sys.executable, "-c", KEEPS_ITS_FILES, f"127.0.0.1:{port}", *command]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != FOLLOWED_FILE}


def _check_whole(run: Path, kept: Path, tmp_path: Path) -> None:
    """The folder of the other host has the files of its agent, and the tables are those of a run that was copied."""
    (other,) = run.glob("host-*")
    assert _contents(other) == _contents(kept)
    assert not [*run.glob("part-of-*")]
    apart = tmp_path / "apart"
    shutil.copytree(run, apart)
    shutil.rmtree(apart / other.name)
    shutil.copytree(kept, apart / other.name)
    assert open_run(run).problems == ()
    found, expected = run_tables(open_run(run)), run_tables(open_run(apart))
    for table, columns in expected.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(found[table][name], column, err_msg=f"{table}.{name}")


@contextmanager
def _served(run: Path, store: Path) -> Iterator[StoreClient]:
    """The server of the page of a run, as soon as that has begun."""
    until(lambda: (run / CLAIM_FILE).exists() and (run / CLAIM_FILE).stat().st_size)
    with served(store, str(run)) as (_, client):
        yield client


def _rows(client: StoreClient, run: str, sql: str) -> list[list[Any]]:
    if run not in client.ask("/v1/runs")["runs"]:
        return []
    rows: list[list[Any]] = client.ask(f"/v1/runs/{run}/query", method="POST", body=sql.encode())["rows"]
    return rows


def test_the_page_shows_both_hosts_while_they_run(tmp_path: Path) -> None:
    """Also when the command of the first host has ended, and that of the other one goes on."""
    port, run = free_port(), tmp_path / "run"
    overs = [tmp_path / "over-first", tmp_path / "over-other"]
    (tmp_path / "kept").mkdir()
    with (
        started([*_first(run, port), *_program("first", overs[0])]) as first,
        started(_keeping(port, *_program("other", overs[1])), TMPDIR=str(tmp_path / "kept")) as other,
        _served(run, tmp_path / "store") as client,
    ):
        sql = (
            "SELECT split_part(region, ' ', 1) AS name, count(*) AS n, max(ended_s) FROM regions GROUP BY 1 ORDER BY 1"
        )
        until(lambda: len(_rows(client, "run-live", sql)) == 2)
        begun = {name: count for name, count, _ in _rows(client, "run-live", sql)}
        assert {*begun} == {"first", "other"}
        until(lambda: all(row[1] > begun[row[0]] + 200 for row in _rows(client, "run-live", sql)))
        late_s = []
        for _ in range(10):  # both hosts are this machine
            ends = {name: end for name, _, end in _rows(client, "run-live", sql)}
            late_s.append(ends["first"] - ends["other"])
        assert min(late_s) < scaled(1.5)
        sql_processes = "SELECT program, state FROM processes WHERE program LIKE '%other%'"
        assert until(lambda: _rows(client, "run-live", sql_processes))[0][1] != "ended"
        assert first.poll() is None and other.poll() is None
        overs[0].touch()
        until(lambda: (run / "run.json").exists())
        ended = {name: count for name, count, _ in _rows(client, "run-live", sql)}
        until(lambda: _rows(client, "run-live", sql)[1][1] > ended["other"] + 200)
        assert client.ask("/v1/runs/run-live")["is_live"]
        overs[1].touch()
        until(lambda: not client.ask("/v1/runs/run-live")["is_live"])
        totals = {name: count for name, count, _ in _rows(client, "run", sql)}
        assert totals["other"] > ended["other"]
        outputs = [first.communicate(timeout=scaled(60)), other.communicate(timeout=scaled(60))]
    assert [first.returncode, other.returncode] == [0, 0], outputs
    (kept,) = (tmp_path / "kept").iterdir()
    _check_whole(run, kept, tmp_path)
    regions = run_tables(open_run(run))["regions"]["region"]
    assert Counter(name.split()[0] for name in regions) == totals


class _Network:
    """A way to the first host that breaks: it carries so many bytes of each connection, and then ends it."""

    def __init__(self, port: int, most_nbytes: list[int]) -> None:
        self._target, self._most = port, most_nbytes
        self.num_broken = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                    there.settimeout(None)
                except OSError:
                    here.close()
                    continue
                most = self._most.pop(0) if self._most else 1 << 60
                for source, target, limit in ((here, there, most), (there, here, 1 << 60)):
                    threading.Thread(target=self._carry, args=(source, target, limit), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with suppress(OSError):
            while limit > 0 and (data := source.recv(min(limit, 1 << 16))):
                target.sendall(data)
                limit -= len(data)
        self.num_broken += limit == 0
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_a_connection_that_breaks_again_and_again_doubles_and_loses_nothing(tmp_path: Path) -> None:
    draw = random.Random(3)
    port, run, over = free_port(), tmp_path / "run", tmp_path / "over"
    network = _Network(port, [draw.randrange(20_000, 300_000) for _ in range(5)])
    (tmp_path / "kept").mkdir()
    seen: Counter[str] = Counter()
    with (
        started([*_first(run, port), *_program("first", over)]) as first,
        started(_keeping(network.port, *_program("other", over)), TMPDIR=str(tmp_path / "kept")) as other,
    ):
        until(lambda: (run / CLAIM_FILE).exists() and (run / CLAIM_FILE).stat().st_size)
        follower = RunFollower(run)

        def look() -> bool:
            found = follower.look()
            seen.update(found.tables.get("regions", {"region": []})["region"])
            return found.is_over

        def of_other() -> int:
            return sum(count for name, count in seen.items() if name.startswith("other"))

        until(lambda: look() or network.num_broken == 5, 60)
        assert network.num_broken == 5
        num_seen = of_other()
        until(lambda: look() or of_other() > num_seen + 300)
        over.touch()
        until(look)
        outputs = [first.communicate(timeout=scaled(60)), other.communicate(timeout=scaled(60))]
    network.close()
    assert [first.returncode, other.returncode] == [0, 0], outputs
    (kept,) = (tmp_path / "kept").iterdir()
    _check_whole(run, kept, tmp_path)
    assert seen == Counter(run_tables(open_run(run))["regions"]["region"])
    assert set(seen.values()) <= {100, seen.most_common()[-1][1], seen.most_common()[-2][1]}


def test_what_has_come_of_a_host_that_is_killed_can_be_read(tmp_path: Path) -> None:
    port, run, over = free_port(), tmp_path / "run", tmp_path / "over"
    with (
        started(joined(port, *_program("other", over))) as other,
        started(_soon_silent(run, port, *_program("first", over))) as first,
    ):
        events = "host-*/*.program"
        until(lambda: any(path.stat().st_size > 72 * 200 for path in run.glob(events)))
        other.send_signal(signal.SIGKILL)
        other.wait(scaled(30))
        until(lambda: not [*run.glob("part-of-*")])
        size = sum(path.stat().st_size for path in run.glob(events))
        over.touch()
        _, error = first.communicate(timeout=scaled(60))
    assert first.returncode == 0
    (folder,) = run.glob("host-*")
    assert f"host {socket.gethostname()}" in error and folder.name in error
    found = open_run(run)
    assert len(found.problems) == 1 and str(folder) in found.problems[0]
    assert [each.exit_code for each in found.other_hosts] == [None]
    (process,) = (each for each in found.processes if "other" in each.snapshot.owner.program)
    assert len(process.events["program"]) * 72 == size and process.problems == ()
    names = {each.id: each.text for each in process.snapshot.definitions if each.kind == "region"}
    texts = [names[int(event["comm"])] for event in process.events["program"]]
    assert texts == [f"other {number // 100}" for number in range(len(texts))]


def test_of_a_host_with_very_many_files_the_rest_comes_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its connection breaks: what was taken before is what is taken afterwards."""
    monkeypatch.setattr(HostFolder, "most_live_files", 4)
    port, run, begun, over = free_port(), tmp_path / "run", tmp_path / "begun", tmp_path / "over"
    network = _Network(port, [60_000])
    (tmp_path / "kept").mkdir()
    program = (
        f"for i in 1 2 3 4 5 6; do cat /etc/hostname; done; touch {begun}; until [ -e {over} ]; do sleep 0.1; done"
    )
    recorded = ThreadPoolExecutor(1).submit(
        record_run, [sys.executable, "-c", waits_for(over)], run, listen=f"127.0.0.1:{port}"
    )
    with started(_keeping(network.port, "sh", "-c", program), TMPDIR=str(tmp_path / "kept")) as other:

        def live_files() -> list[Path]:
            found = [path for path in run.glob("host-*/*") if is_growing(path.name.rpartition(".")[2])]
            return [*found, *run.glob(f"host-*/{LIVE_FOLDER}/*")]

        try:
            until(lambda: begun.exists() and network.num_broken and len(live_files()) == 4)
            description = next(run.glob(f"host-*/{CLAIM_FILE}"))
            for _ in range(2):  # further answers bring no further file
                told_s = description.stat().st_mtime_ns
                until(lambda told_s=told_s: description.stat().st_mtime_ns != told_s)
                assert len(live_files()) == 4
        finally:
            over.touch()
        recording = recorded.result(scaled(60))
        output = other.communicate(timeout=scaled(60))
    network.close()
    assert (other.returncode, recording.num_hosts) == (0, 2), output
    (problem,) = recording.problems
    assert problem.startswith("host-1-") and "4" in problem
    (kept,) = (tmp_path / "kept").iterdir()
    _check_whole(run, kept, tmp_path)


def test_a_first_agent_that_is_killed_leaves_other_hosts_incomplete_and_the_run_says_so(tmp_path: Path) -> None:
    port, run, over = free_port(), tmp_path / "run", tmp_path / "over"
    with (
        started(joined(port, *_program("other", over)), TMPDIR=str(tmp_path)) as other,
        started([*_first(run, port), *_program("first", over)]) as first,
    ):
        until(lambda: any(path.stat().st_size > 72 * 200 for path in run.glob("host-*/*.program")))
        assert open_run(run).problems == ()
        first.send_signal(signal.SIGKILL)
        first.wait(scaled(30))
        over.touch()
        other.communicate(timeout=scaled(60))
    (folder,) = run.glob("host-*")
    (problem,) = open_run(run).problems
    assert str(folder) in problem and socket.gethostname() in problem
    shutil.rmtree(folder)  # as if the command had been too short for anything to come before its end
    (run / f"part-of-{folder.name}").mkdir(exist_ok=True)
    (problem,) = open_run(run).problems
    assert str(folder) in problem and socket.gethostname() in problem


def test_other_versions_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        for content in ("old host", {"host": "old host", "version": VERSION - 1},
                        {"host": "old host", "version": VERSION + 1}):  # fmt: skip
            stream = agent_of(collector)
            stream.send_object("join", content, 5.0)
            kind, text = stream.receive_object(scaled(10))
            assert kind == "refused" and "old-host" in text and f"version {VERSION}" in text
            with pytest.raises(ConnectionError):
                receive_all(stream)
        monkeypatch.setattr("hocket.observe.host_collector.VERSION", 99)
        with raises(RecorderError, names="version 99"):
            join_run(["true"], collector.name, timeout=scaled(5))
        until(lambda: len(collector.problems) == 4)
    assert [*(tmp_path / "run").iterdir()] == []


def test_a_recorder_of_an_ended_process_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows a run reads it as soon as it is there."""
    from hocket.observe import drain

    copy, while_copying = drain.copy_sparsely, []

    def slow_copy(source: Path, target: Path) -> None:
        copy(source, target)
        while_copying.extend((tmp_path / "run").glob("*.recorder"))

    monkeypatch.setattr(drain, "copy_sparsely", slow_copy)
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    assert len([*(tmp_path / "run").glob("*.recorder")]) == 1 and while_copying == []


def test_folders_of_hosts_are_not_believed(tmp_path: Path) -> None:
    """One has nothing to read; the other one names a folder of this host as its memory."""
    run, memory, other = tmp_path / "run", tmp_path / "memory", tmp_path / "other"
    record_run(["cat", "/etc/hostname"], run)
    record_run(["cat", "/etc/passwd"], other)
    memory.mkdir()
    (recorder,) = other.glob("*.recorder")
    shutil.copy(recorder, memory / f"hocket-recorder-{recorder.stem}")
    for number, content in enumerate(({}, json.loads((other / "run.json").read_text()) | {"memory": str(memory)})):
        (run / f"host-{number}-x").mkdir()
        (run / f"host-{number}-x" / CLAIM_FILE).write_text(json.dumps(content | {"exit_code": None}))
    found = open_run(run)
    assert [each.snapshot.owner.program for each in found.processes] == ["cat /etc/hostname"]
    assert len(found.problems) == 3 and str(run / "host-0-x") in found.problems[0]
    assert str(run / "host-1-x") in found.problems[1] + found.problems[2]
    (run / "host-1-x" / LIVE_FOLDER).symlink_to(memory)
    assert len(open_run(run).processes) == 2  # the folder would have been read


@pytest.mark.parametrize("damage", [b"", b"no recorder", "cut"])
def test_a_bad_recorder_of_another_host_is_a_problem_of_the_run(tmp_path: Path, damage: bytes | str) -> None:
    """The rest of that host is shown, also while the run is followed."""
    run, other = tmp_path / "run", tmp_path / "run" / "host-1-x"
    record_run(["cat", "/etc/hostname"], run)
    record_run(["cat", "/etc/passwd"], other)
    (good,) = other.glob("*.recorder")
    bad = good.with_name("0-1" + good.suffix)
    bad.write_bytes(damage if isinstance(damage, bytes) else good.read_bytes()[:100])
    description = json.loads((other / "run.json").read_text())
    for each in ("num_events", "lost"):
        description[each]["0-1"] = {}
    (other / "run.json").write_text(json.dumps(description))
    found = open_run(run)
    assert len(found.problems) == 1 and str(bad) in found.problems[0]
    programs = {"cat /etc/hostname", "cat /etc/passwd"}
    assert {each.snapshot.owner.program for each in found.processes} == programs
    assert {each.snapshot.owner.program for each in read_latest(run)[0].processes} == programs


def test_an_agent_follows_while_the_run_is_followed(tmp_path: Path) -> None:
    """Then it saves sooner; and the file that says so is no part of the run."""
    port, run, over = free_port(), tmp_path / "run", tmp_path / "over"
    ready = tmp_path / "ready"
    program = leaves(ready) + PROGRAM
    (tmp_path / "kept").mkdir()
    command = _keeping(port, sys.executable, "-c", program, "other", str(over))
    with (
        started([*_first(run, port), sys.executable, "-c", waits_for(over)]) as first,
        started(command, TMPDIR=str(tmp_path / "kept")) as other,
    ):
        until(ready.exists)
        until(lambda: (run / FOLLOWED_FILE).touch() or [*(tmp_path / "kept").glob(f"*/{FOLLOWED_FILE}")])
        over.touch()
        assert (first.wait(scaled(60)), other.wait(scaled(60))) == (0, 0)
    (folder,) = run.glob("host-*")
    assert not (folder / FOLLOWED_FILE).exists() and os.path.exists(folder / "run.json")
