"""What hosts send of a run that goes on: how much, when, and that nothing of it is believed before it is checked."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from time import monotonic

import pytest

from hocket.boot.sealed import ProtocolError, RankEnd, ServerEnd
from hocket.boot.secret import find_secret
from hocket.errors import RecorderError
from hocket.observe import RunDescription, open_run, record_run
from hocket.observe.drain import Drain
from hocket.observe.growth_pace import LEAST_NBYTES, MOST_NBYTES_S, GrowthPace
from hocket.observe.host_collector import HostCollector
from hocket.observe.host_folder import HostFolder, checked_description, checked_growth, checked_head
from hocket.observe.host_growth import GrowthSender
from hocket.observe.host_joiner import HostJoiner
from hocket.observe.recorder_head import BLOCK_NBYTES, read_head
from hocket.observe.saved import CLAIM_FILE, LIVE_FOLDER, description_text, save_progress
from hocket.observe.sealed_stream import PURPOSE, SealedStream
from hocket.trace import read_recorder

from ..load import scaled
from ..naming import raises
from .joined_hosts import agent_of, join, memory_beside, receive_all

pytestmark = pytest.mark.timeout(60)
DESCRIPTION = RunDescription(("true",), "far", 0.0, 1.0, None, {}, {}, ((1, 1), (2, 2)))
GOOD = description_text(DESCRIPTION).encode()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SECRET", "the secret of these tests")


@contextmanager
def _streams() -> Iterator[tuple[SealedStream, SealedStream]]:
    """Both ends of a connection: that of the first host, and that of another one."""
    here, there = socket.socketpair()
    server, rank = ServerEnd(find_secret(), PURPOSE), RankEnd(find_secret(), PURPOSE, 1, 0)
    while not (server.is_proven and rank.is_proven):
        for source, target in ((server, rank), (rank, server)):
            content, source.outgoing = bytes(source.outgoing), bytearray()
            target.take_in(content)
    with here, there:
        yield SealedStream(here, server), SealedStream(there, rank)


# How much, and when


@pytest.mark.parametrize("num_hosts", [1, 3, 64, 4096])
@pytest.mark.parametrize("nbytes_s", [20e3, 1e6, 1e8, 1e12])
@pytest.mark.parametrize("is_followed", [False, True])
def test_answers_take_a_share_of_the_time_and_all_hosts_have_a_bound(
    num_hosts: int, nbytes_s: float, is_followed: bool
) -> None:
    """A host with more than it may send, over networks of several speeds, by a clock of this test."""
    pace, now_s, sent, busy_s, asked = GrowthPace(), 1000.0, 0, 0.0, 0
    while now_s < 1600.0:
        if nbytes := pace.ask(now_s, num_hosts, is_followed=is_followed):
            assert nbytes >= LEAST_NBYTES
            assert pace.ask(now_s, num_hosts, is_followed=is_followed) == 0  # it has not answered
            took_s = 0.002 + nbytes / nbytes_s
            pace.take(nbytes)
            pace.end_answer(now_s + took_s, has_more=True)
            sent, busy_s, asked = sent + nbytes, busy_s + took_s, asked + 1
            now_s += took_s
        else:
            now_s += 0.02
    share, seldom_s = (0.2, 1.6) if is_followed else (0.05, 4.5)
    assert busy_s < 1.25 * share * 600 and sent * num_hosts <= MOST_NBYTES_S * 610
    assert asked > 600 / (30 if num_hosts == 4096 or nbytes_s < 1e6 else seldom_s)
    if num_hosts == 1 and nbytes_s >= 1e8:
        assert sent > min(MOST_NBYTES_S, share * nbytes_s) * 300  # what may be sent is sent


def test_answers_become_small_on_a_slow_network() -> None:
    pace, now_s = GrowthPace(), 0.0
    for _ in range(20):
        while not (nbytes := pace.ask(now_s, 1, is_followed=True)):
            now_s += 0.05
        pace.end_answer(now_s + 1.0, has_more=True)
        now_s += 1.0
    assert nbytes == LEAST_NBYTES


def test_who_begins_to_follow_does_not_wait_for_the_pause_of_before() -> None:
    pace = GrowthPace()
    assert pace.ask(0.0, 1, is_followed=False)
    pace.end_answer(0.5, has_more=True)
    assert [pace.ask(now_s, 1, is_followed=False) for now_s in (2.4, 2.6, 9.9)] == [0, 0, 0]
    assert pace.ask(2.6, 1, is_followed=True)


def test_nothing_is_taken_that_was_not_asked_for() -> None:
    pace = GrowthPace()
    for take in (pace.take, pace.take_other):
        with pytest.raises(ProtocolError):
            take(0)
    with pytest.raises(ProtocolError):
        pace.end_answer(1.0, has_more=False)
    nbytes = pace.ask(1.0, 1, is_followed=False)
    pace.take(nbytes)
    with pytest.raises(ProtocolError):
        pace.take(1)
    with pytest.raises(ProtocolError):
        pace.take_other(1 << 30)
    pace.end()
    with pytest.raises(ProtocolError):
        pace.take(0)
    assert pace.ask(100.0, 1, is_followed=False) == 0


# Heads and files


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("growth") / "run"
    record_run(["cat", "/etc/hostname"], folder)
    return folder


def test_a_head_has_all_but_the_events(recorded: Path, tmp_path: Path) -> None:
    (path,) = recorded.glob("*.recorder")
    head = read_head(path)
    assert head is not None and [*head.blocks][-1] == 0
    with (tmp_path / "copy").open("wb") as file:
        for number, block in head.blocks.items():
            file.seek(number * BLOCK_NBYTES)
            file.write(block)
        file.truncate(head.nbytes)
    found, expected = read_recorder(tmp_path / "copy"), read_recorder(path)
    assert (found.owner, found.definitions, found.problems) == (expected.owner, expected.definitions, ())
    assert found.histograms.tobytes() == expected.histograms.tobytes() and len(found.histograms)
    assert (found.io, found.end_status) == (expected.io, expected.end_status)
    assert sum(len(ring.events) for ring in found.rings.values()) == 0 < len(expected.rings["io"].events)
    assert sum(map(len, head.blocks.values())) < 300 << 10 < path.stat().st_size


@pytest.mark.parametrize(
    "content", [b"", b"HCKRECR1", bytes(9000), b"HCKRECR1" + b"\xff" * 9000, bytes(17) + b"\x20" + bytes(9000)]
)
def test_what_is_no_recorder_has_no_head(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_head(tmp_path / "file") is None
    assert read_head(tmp_path / "missing") is None


def _begun(folder: Path, recorded: Path) -> tuple[Path, Drain]:
    """The folder of an agent with one process that has ended, of a run that goes on."""
    (path,) = recorded.glob("*.recorder")
    folder.mkdir()
    shutil.copy(path, folder)
    save_progress(folder, DESCRIPTION, Path("/nowhere"))
    drain = Drain(path.stem, folder / path.name, folder)
    drain.has_copy = True
    return folder, drain


def test_what_is_behind_comes_later_and_in_order(recorded: Path, tmp_path: Path) -> None:
    """Files grow faster than may be sent; no file waits for the end of another one."""
    draw = random.Random(11)
    source, drain = _begun(tmp_path / "agent", recorded)
    sender, host = GrowthSender(source, lambda: [drain]), HostFolder(tmp_path / "host-1-far")
    names = [f"{drain.name}.io", f"{drain.name}.program", "device-0.series", "connections.series", "other.io"]

    def sizes() -> list[int]:
        return [(host.folder / name).stat().st_size if (host.folder / name).exists() else 0 for name in names]

    with _streams() as (here, there):
        for turn in range(200):
            if turn < 40:
                for name in names:
                    with (source / name).open("ab") as file:
                        file.write(draw.randbytes(draw.randrange(1, 20_000)))
            answering = threading.Thread(target=sender.answer, args=(there, LEAST_NBYTES, HostFolder.most_live_files))
            answering.start()
            has_more = _take(here, host)
            answering.join(scaled(10))
            assert [*host.folder.glob("*.recorder")] == []
            if turn == 20:
                assert min(sizes()) > 0 and has_more
            if not has_more and turn > 40:
                break
    assert all((host.folder / name).read_bytes() == (source / name).read_bytes() for name in names)
    (live,) = (host.folder / LIVE_FOLDER).iterdir()
    assert read_recorder(live).definitions == read_recorder(source / f"{drain.name}.recorder").definitions


def _take(here: SealedStream, host: HostFolder) -> bool:
    """Take an answer; return whether more is there to send."""
    grown = 0
    while True:
        kind, content = here.receive_object(scaled(10))
        if kind == "description":
            host.describe(checked_description(content), here)
        elif kind == "head":
            host.patch_head(checked_head(content), here)
        elif kind == "growth":
            growth = checked_growth(content)
            grown += growth[-1]
            host.grow(growth, here)
        else:
            assert kind == "grown" and grown <= LEAST_NBYTES
            return bool(content)


@pytest.mark.parametrize("known", [{"x.io": -1}, {"x.io": 9}, {"x.io": "1"}, {"x.io": True}, {"x.io": 2**70}])
def test_a_first_host_that_has_more_than_was_sent_is_not_believed(
    known: dict[str, object], recorded: Path, tmp_path: Path
) -> None:
    source, drain = _begun(tmp_path / "agent", recorded)
    (source / "x.io").write_bytes(b"12345678")
    sender = GrowthSender(source, lambda: [drain])
    with pytest.raises(ProtocolError):
        sender.continue_from(known)
    sender.continue_from({"x.io": 5, "../run.json": 3, "unknown": 1 << 60})
    assert sender.sent == {"x.io": 5}


# A hostile agent


HEAD = ["one-1-2", 3 * BLOCK_NBYTES, [1, 0]]
BAD_MESSAGES: list[tuple[str, object, bytes]] = [
    *(("description", content, b"") for content in (0, -1, 1 << 40, 1 << 60, "1", True, None, [], {})),
    *(("description", len(text), text) for text in (b"[]", b"\xff\xff", b"[" * 9000, b"{}", GOOD[:-1])),
    ("description", len(GOOD), GOOD + b"x"),
    *(("description", len(text), text) for text in (
        GOOD.replace(b'"command": ["true"]', b'"command": "true"'), GOOD.replace(b"[[1, 1], [2, 2]]", b"[[1, 1]]"),
        GOOD.replace(b"[[1, 1], [2, 2]]", b"[[Infinity, 1], [2, 2]]"), GOOD.replace(b"version 2", b"version 3"),
        GOOD.replace(b"[[1, 1], [2, 2]]", b"[[1, 1], [2, %d]]" % (1 << 70)))),
    *(("head", [name, *HEAD[1:]], bytes(2 * BLOCK_NBYTES)) for name in ("../x", "", ".", "a/b", "x" * 200, None, 1)),
    *(("head", [HEAD[0], size, [0]], bytes(BLOCK_NBYTES)) for size in (0, -1, 100, 1 << 60, True, "4096", None, 9e9)),
    *(("head", [HEAD[0], 3 * BLOCK_NBYTES, blocks], bytes(2 * BLOCK_NBYTES)) for blocks in (
        [], [-1], [3], [1 << 60], [0, 0], [True], ["0"], [None], [[0]], "0", None, {"0": 0}, list(range(5000)))),
    ("head", HEAD, b"x"), ("head", HEAD, bytes(BLOCK_NBYTES + 1)), ("head", HEAD, bytes(9 * BLOCK_NBYTES)),
    ("head", [], b""), ("head", None, b""), ("head", {}, b""),
    *(("growth", [name, 0, 1], b"x") for name in (
        "run.json", "recording", "../x.io", "/x.io", ".io", "live/x.io", "live", "x.recorder", "x.json", "io", "x.",
        "x.part", "x" * 200 + ".io", None, 1, ["x.io"])),
    *(("growth", ["x.io", offset, 1], b"x") for offset in (1, -1, 1 << 39, 1 << 60, 2**70, True, "0", None, 0.0)),
    *(("growth", ["x.io", 0, size], b"x") for size in (0, -1, 1 << 30, 1 << 60, True, "1", None)),
    ("growth", ["x.io", 0, 2], b"xxx"), ("growth", [], b""), ("growth", None, b""), ("growth", ["x.io", 0], b""),
    ("growth", ["good.io", 0, 1], b"x"), ("growth", ["good.io", 5, 1], b"x"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["description", "head", "growth"])
def test_a_hostile_agent_is_cut_off_and_leaves_what_it_may(tmp_path: Path, kind: str) -> None:
    messages = [(content, piece) for each, content, piece in BAD_MESSAGES if each == kind]
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        for number, (content, piece) in enumerate(messages):
            stream = agent_of(collector)
            join(stream, f"far-{number}", ident=f"{number}")
            assert receive_all(stream, until="grow")
            stream.send_object("description", len(GOOD), 5.0)
            stream.send(GOOD, 5.0)
            stream.send_object("growth", ["good.io", 0, 4], 5.0)
            stream.send(b"good", 5.0)
            with pytest.raises(ConnectionError):  # the collector closes the connection
                _say(stream, kind, content, piece)
        collector.wait_for_hosts()
        assert sorted(each.split()[1] for each in collector.problems) == sorted(
            f"far-{number}:" for number in range(len(messages))
        )
    _check_folders(tmp_path, len(messages))


def test_a_hostile_agent_that_sends_more_files_than_are_taken_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostFolder, "most_live_files", 1)
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        assert receive_all(stream, until="grow")
        stream.send_object("description", len(GOOD), 5.0)
        stream.send(GOOD, 5.0)
        for offset, content in enumerate((b"g", b"o", b"o", b"d")):  # of a file that is taken
            stream.send_object("growth", ["good.io", offset, 1], 5.0)
            stream.send(content, 5.0)
        with pytest.raises(ConnectionError):
            _say(stream, "growth", ["x.io", 0, 1], b"x")
        collector.wait_for_hosts()
        assert len(collector.problems) == 1
    _check_folders(tmp_path, 1)
    assert not [*tmp_path.rglob("x.io")]


def _say(stream: SealedStream, kind: str, content: object, piece: bytes = b"") -> None:
    stream.send_object(kind, content, 5.0)
    if piece:
        stream.send(piece, 5.0)
    receive_all(stream)


def _check_folders(tmp_path: Path, count: int) -> None:
    """Nothing lies outside of the hosts' folders, and nothing there is large or has a name of its choice."""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "run"]
    folders = [*(tmp_path / "run").iterdir()]
    assert len(folders) == count and [*(tmp_path / "memory").iterdir()] == []
    allowed = {CLAIM_FILE, "good.io", "x.io", f"{LIVE_FOLDER}/hocket-recorder-{HEAD[0]}"}
    for folder in folders:
        assert folder.name.startswith("host-") and (folder / "good.io").read_bytes() == b"good"
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {str(path.relative_to(folder)) for path in files} <= allowed
        assert max(path.stat().st_size for path in files) <= 3 * BLOCK_NBYTES
        assert json.loads((folder / CLAIM_FILE).read_text())["memory"] == str(folder / LIVE_FOLDER)


@pytest.mark.parametrize(
    ("kind", "content", "is_asked"),
    [("growth", ["x.io", 0, 1], True), ("head", HEAD, True), ("nonsense", 1, True),  # a description must come first
     ("growth", ["x.io", 0, 1], False), ("head", HEAD, False), ("description", len(GOOD), False),
     ("grown", False, False)],
)  # fmt: skip
def test_what_was_not_asked_for_or_comes_too_early_is_refused(
    tmp_path: Path, kind: str, content: object, is_asked: bool
) -> None:
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        assert receive_all(stream, until="grow")
        if not is_asked:
            stream.send_object("grown", False, 5.0)
        with pytest.raises(ConnectionError):
            _say(stream, kind, content)
        collector.wait_for_hosts()
    assert [*(tmp_path / "run").iterdir()] == []


def test_a_description_says_nothing_of_this_host(tmp_path: Path) -> None:
    """Neither where recorders lie here, nor that the run is over."""
    with HostCollector("127.0.0.1", 0, tmp_path / "run", memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        assert receive_all(stream, until="grow")
        text = json.dumps(json.loads(GOOD) | {"memory": "/etc", "exit_code": 0}).encode()
        stream.send_object("description", len(text), 5.0)
        stream.send(text, 5.0)
        stream.send_object("grown", False, 5.0)
        assert receive_all(stream, until="grow")
        (folder,) = (tmp_path / "run").glob("host-*")
        content = json.loads((folder / CLAIM_FILE).read_text())
        assert (content["memory"], content["exit_code"]) == (str(folder / LIVE_FOLDER), None)


def test_a_host_whose_folder_could_not_be_finished_on_a_full_disk_comes_again(tmp_path: Path, recorded: Path) -> None:
    """Its folder was shown just before the disk was full."""
    memory = memory_beside(tmp_path)
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=4", "tmpfs", str(tmp_path / "run")]
    subprocess.run(mount, check=True, timeout=30)
    try:
        with HostCollector("127.0.0.1", 0, tmp_path / "run", memory) as collector:
            stream = agent_of(collector)
            join(stream, "far")
            assert receive_all(stream, until="grow")
            with pytest.raises(ConnectionError):
                _say(stream, "description", len(GOOD), GOOD)
            assert [path.name for path in (tmp_path / "run").iterdir()] == ["host-1-far"]
            subprocess.run([*mount[:3], "-o", "remount,nr_inodes=100", str(tmp_path / "run")], check=True, timeout=30)
            stream = agent_of(collector)
            join(stream, "far")
            assert receive_all(stream, until="grow")
            stream.send_object("description", len(GOOD), 5.0)
            stream.send(GOOD, 5.0)
            _send_whole(stream, recorded)
            assert receive_all(stream, until="kept")
            assert collector.problems == []
        assert _contents(tmp_path / "run" / "host-1-far") == _contents(recorded)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["host-1-far"]
    finally:
        subprocess.run(["umount", str(tmp_path / "run")], check=True, timeout=30)


def _send_whole(stream: SealedStream, folder: Path) -> None:
    for path in folder.iterdir():
        stream.send_object("file", [path.name, 0, path.stat().st_size], 5.0)
        with path.open("rb") as file:
            stream.send_content(file, os.fstat(file.fileno()).st_size, 5.0)
    stream.send_object("end", None, 5.0)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CLAIM_FILE}


# A hostile first host


@pytest.mark.parametrize(
    "asked",
    [*({"most_nbytes": nbytes, "most_files": 9} for nbytes in (0, -1, 1 << 50, True, "9", None)),
     *({"most_nbytes": 9, "most_files": files} for files in (-1, True, "9", None)), {}, [], None, 5],
)  # fmt: skip
def test_a_first_host_that_asks_for_nonsense_is_left(tmp_path: Path, asked: object) -> None:
    with _first_host({"known_nbytes": 2}, b"{}") as (address, streams):
        joiner = HostJoiner(address, scaled(5))
        try:
            stream = streams.get(timeout=scaled(10))
            stream.send_object("grow", asked, 5.0)
            streams.put(stream)
            joiner._thread.join(scaled(10))
            assert not joiner._thread.is_alive()  # it does not try again
            with raises(RecorderError, names=str(tmp_path)):
                joiner.send_run(tmp_path)
        finally:
            joiner.close()


@pytest.mark.parametrize(
    ("welcome", "known"),
    [({"known_nbytes": 1 << 60}, b""), ({"known_nbytes": -1}, b""), ({"known_nbytes": True}, b""), ({}, b""),
     ({"known_nbytes": 2}, b"[]"), ({"known_nbytes": 2}, b"xx"), ({"known_nbytes": 2}, b"{}x"),
     ({"known_nbytes": 9000}, b"[" * 9000), ({"clock_port": None}, b"")],
)  # fmt: skip
def test_a_welcome_is_checked(welcome: dict[str, object], known: bytes) -> None:
    began_s = monotonic()
    with _first_host(welcome, known) as (address, _), pytest.raises(RecorderError):
        HostJoiner(address, scaled(5)).close()
    assert monotonic() - began_s < scaled(15)  # nothing was waited for


@contextmanager
def _first_host(welcome: dict[str, object], known: bytes) -> Iterator[tuple[tuple[str, int], Queue[SealedStream]]]:
    """It has the secret, and answers as it likes."""
    from hocket.clock import clock_origin
    from hocket.observe.host_collector import _authenticated

    origin, streams = clock_origin(), Queue[SealedStream]()
    answer = {"clock_port": 1, "boot_id": origin.boot_id, "offset_s": origin.offset_s} | welcome
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            stream = _authenticated(connection, ServerEnd(find_secret(), PURPOSE))
            assert stream.receive_object(10.0)[0] == "join"
            stream.send_object("welcome", answer, 5.0)
            if known:
                stream.send(known, 5.0)
            streams.put(stream)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield ("127.0.0.1", int(server.getsockname()[1])), streams
        finally:
            thread.join(scaled(10))
            streams.get(timeout=scaled(10)).close()


def test_a_whole_host_that_came_without_a_word_before_is_as_before(tmp_path: Path, recorded: Path) -> None:
    """A command that ends at once: nothing was asked for."""
    target = tmp_path / "run"
    shutil.copytree(recorded, target)
    with HostCollector("127.0.0.1", 0, target, memory_beside(tmp_path)) as collector:
        stream = agent_of(collector)
        join(stream, "far")
        _send_whole(stream, recorded)
        assert receive_all(stream, until="kept")
        assert collector.problems == []
    (folder,) = target.glob("host-*")
    assert _contents(folder) == _contents(recorded)
    assert len(open_run(target).processes) == 2
