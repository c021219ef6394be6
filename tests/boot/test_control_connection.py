"""A rank's end of the control connection, with a server that sends invalid messages: errors and bounds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hocket import _native
from hocket.boot.connecting import Place
from hocket.boot.control import ControlConnection, ControlMessages, Member
from hocket.boot.messages import encode
from hocket.boot.sealed import RankEnd, ServerEnd
from hocket.boot.secret import Secret
from hocket.errors import CommTimeout, HocketError, InvalidArgument, PeerFailure, ResourceExhausted
from hocket.observe import RecordedEvent, events_in
from hocket.trace import find_recorders

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 20.0


SECRET = Secret(b"k" * 32, "this test")


class Server:
    """A server's end of a connection, which sends any message of a test."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.end = ServerEnd(SECRET, "j")
        self._came: list[bytes] = []

    def flush(self) -> None:
        if self.end.outgoing:  # the other end may have disconnected
            self.connection.sendall(self.end.outgoing)
        self.end.outgoing.clear()

    def take_in(self) -> None:
        self._came += self.end.take_in(self.connection.recv(1 << 16))
        self.flush()

    def send(self, message: bytes) -> None:
        self.end.send(message)
        self.flush()

    def read(self) -> Any:
        while not self._came:
            self.take_in()
        return json.loads(self._came.pop(0))


@contextlib.contextmanager
def connected(*with_welcome: bytes) -> Iterator[tuple[ControlConnection, Server]]:
    ours, others = socket.socketpair()
    others.settimeout(DEADLINE_S)
    server, place = Server(others), Place(SECRET, "j", 3, 1)
    rank = RankEnd(place.secret, place.job, place.size, place.rank)
    server.flush()
    rank.take_in(ours.recv(1 << 16))
    ours.sendall(rank.outgoing)
    rank.outgoing.clear()
    server.take_in()
    rank.take_in(ours.recv(1 << 16))
    members = [Member("host", "127.0.0.1", each, f"place {each}") for each in range(3)]
    messages = ControlMessages(ours, rank, place)
    if with_welcome:
        for message in (b'{"missing": []}', *with_welcome):
            server.end.send(message)
        server.flush()
        messages.receive_one()
    with others:
        connection = ControlConnection(messages, members, "nonce")
        yield connection, server
        connection.close()


@pytest.fixture
def ends() -> Iterator[tuple[ControlConnection, Server]]:
    with connected() as both:
        yield both


NEVER_SAID: dict[str, Any] = {
    "no JSON": b"hello",
    "no object": b"3",
    "no message": b"{}",
    "unknown message": {"hurry": 1},
    "deep": b"[" * 200_000,
    "number of 5000 digits": b'{"gone": ' + b"1" * 5000 + b"}",
    "welcome again": {"welcome": {"nonce": "", "members": []}},
    "refused after the start": {"refused": "why"},
    "texts of other ranks": {"exchange": ["a", "b"]},
    "rank out of range": {"gone": 3},
    "negative rank": {"gone": -1},
    "no rank": {"gone": "x"},
    "nothing left": {"left": {}},
    "left by a rank out of range": {"left": {"key": 1, "rank": 1 << 30, "seq": 1, "history": 1}},
    "number too large": {"left": {"key": 1, "rank": 1, "seq": 1 << 64, "history": 1}},
    "list in the place of an object": {"aborted": [1, 2]},
    "abort of a rank out of range": {"aborted": {"key": 1, "code": 1, "text": "", "ranks": [7]}},
    "abort without text": {"aborted": {"key": 1, "code": 1, "text": None, "ranks": [1]}},
    "negative key": {"tell": {"key": -1, "seq": 1}},
    "trace of nothing": {"trace": {"key": 1}},
    "verdict on a rank out of range": {"verdict": {"key": 1, "seq": 1, "behind": [-2], "mismatch": "", "wanted": []}},
}


@pytest.mark.parametrize("name", NEVER_SAID)
def test_what_no_server_says_ends_the_connection(ends: tuple[ControlConnection, Server], name: str) -> None:
    connection, server = ends
    said = NEVER_SAID[name]
    server.send(said if isinstance(said, bytes) else json.dumps(said).encode())
    with raises(PeerFailure, names=("rank 0", "place 0")):
        connection.exchange("text", DEADLINE_S)
    connection._thread.join(DEADLINE_S)
    assert not connection._thread.is_alive()


def test_what_came_with_the_welcome_is_heard() -> None:
    """A death that is reported in the same packet."""
    with connected(b'{"gone": 2}') as (connection, _), raises(PeerFailure, names=("rank 2", "place 2")) as caught:
        connection.exchange("text", DEADLINE_S)
    assert caught.value.ranks == (2,)


def test_why_another_rank_cannot_start_is_heard(ends: tuple[ControlConnection, Server]) -> None:
    connection, server = ends
    server.send(b'{"failed": {"rank": 2, "text": "memory"}}')
    with raises(PeerFailure, names=("rank 2", "place 2", "memory")) as caught:
        connection.exchange("text", DEADLINE_S)
    assert caught.value.ranks == (2,)


def test_messages_are_recorded(ends: tuple[ControlConnection, Server]) -> None:
    connection, server = ends
    text = "recorded " * 5
    answer = json.dumps({"exchange": [text, "", ""]}).encode()
    server.send(answer)
    assert connection.exchange(text, DEADLINE_S) == [text, "", ""]
    assert server.read() == {"exchange": text}
    events = [each for each in _control_events() if each.name.endswith(" exchange")][-3:]
    assert {(each.name, each.nbytes, each.state) for each in events} == {
        ("send exchange", len(encode("exchange", text)), "completed"),
        ("receive exchange", len(answer), "completed"),
        ("wait for exchange", 0, "completed"),
    }
    with raises(CommTimeout):
        connection.exchange(text, 0.01)
    assert [each.state for each in _control_events() if each.name == "wait for exchange"][-1] == "failed"


def _control_events() -> list[RecordedEvent]:
    (place,) = find_recorders(os.getpid())
    return [each for each in events_in(place.read(), 4096) if each.ring == "process"]


@pytest.mark.parametrize("failure", [None, OSError("no memory \udcff"), PeerFailure("rank 2 died", (2,))])
def test_who_leaves_says_why_it_cannot_start(
    ends: tuple[ControlConnection, Server], failure: BaseException | None
) -> None:
    connection, server = ends
    connection.close(failure)
    if isinstance(failure, OSError):  # the server reports deaths to the other ranks
        assert "no memory" in server.read()["failed"]
    assert server.read() == {"bye": None}


def test_texts_are_bounded_as_they_are_sent(ends: tuple[ControlConnection, Server]) -> None:
    connection, server = ends
    for text in ("a" * 131_073, "\0" * 30_000, "\U0001f41f" * 20_000):
        with pytest.raises(ResourceExhausted):
            connection.exchange(text, DEADLINE_S)
    with pytest.raises(CommTimeout):
        connection.exchange("half a character \ud800", 0.01)
    assert "half a character" in server.read()["exchange"]


@pytest.mark.parametrize("seq", [0, 1, 255, 256, 1 << 32, (1 << 64) - 1])
def test_histories_have_a_length(ends: tuple[ControlConnection, Server], seq: int) -> None:
    connection, server = ends
    began_s = time.monotonic()
    server.send(json.dumps({"trace": {"key": 1, "seq": seq}}).encode())
    assert server.read() == {"traced": {"key": 1, "seq": seq, "histories": [0] * 256}}
    assert time.monotonic() - began_s < DEADLINE_S
    assert connection._lost is None


def test_what_was_not_sealed_ends_the_connection(ends: tuple[ControlConnection, Server]) -> None:
    connection, server = ends
    server.connection.sendall(b'{"gone": 1}' * 10)
    with raises(PeerFailure, names=("rank 0", "place 0")):
        connection.exchange("text", DEADLINE_S)


def test_whatever_ends_the_thread_is_told(
    ends: tuple[ControlConnection, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, server = ends

    def fail(kind: str, content: object) -> None:
        raise ZeroDivisionError("a mistake of hocket's own")

    monkeypatch.setattr(connection, "_take_in", fail)
    server.send(b'{"gone": 1}')
    with raises(PeerFailure, names=("rank 0", "place 0")):
        connection.exchange("text", DEADLINE_S)


def test_communicators_that_others_speak_of_are_counted() -> None:
    control = _native.Control(["here", "there"])
    for key in range(256):
        control.note_left(key, 1, 1, 1)
    with pytest.raises(ResourceExhausted):
        control.note_left(256, 1, 1, 1)
    control.note_left(255, 0, 1, 1)
    for rank in (-1, 2):
        with pytest.raises(InvalidArgument):
            control.note_death(rank)
    with pytest.raises(HocketError):
        control.note_abort(1, 0, "", [5])
    assert control.dead() == []
