"""A rank's end of the control connection, with a server that says what none says: the rank is told, and bounds hold."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hocket import _native
from hocket.boot.control import ControlConnection, Member, _Lines
from hocket.errors import HocketError, InvalidArgument, PeerFailure, ResourceExhausted

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[ControlConnection, socket.socket]]:
    ours, server = socket.socketpair()
    server.settimeout(DEADLINE_S)
    members = [Member("host", "127.0.0.1", rank, f"place {rank}") for rank in range(3)]
    with server:
        connection = ControlConnection(_Lines(ours), members)
        yield connection, server
        connection.close()


NEVER_SAID: dict[str, Any] = {
    "no JSON": b"hello\n",
    "no object": b"3\n",
    "no message": b"{}\n",
    "unknown message": {"hurry": 1},
    "deep": b"[" * 200_000 + b"\n",
    "number of 5000 digits": b'{"gone": ' + b"1" * 5000 + b"}\n",
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
    "verdict on a rank out of range": {"verdict": {"key": 1, "seq": 1, "behind": [-2], "mismatch": ""}},
}


@pytest.mark.parametrize("name", NEVER_SAID)
def test_what_no_server_says_ends_the_connection(ends: tuple[ControlConnection, socket.socket], name: str) -> None:
    connection, server = ends
    said = NEVER_SAID[name]
    server.sendall(said if isinstance(said, bytes) else json.dumps(said).encode() + b"\n")
    with raises(PeerFailure, names=("rank 0", "place 0")):
        connection.exchange("text", DEADLINE_S)
    connection._thread.join(DEADLINE_S)
    assert not connection._thread.is_alive()


@pytest.mark.parametrize("seq", [0, 1, 255, 256, 1 << 32, (1 << 64) - 1])
def test_histories_have_a_length(ends: tuple[ControlConnection, socket.socket], seq: int) -> None:
    connection, server = ends
    began_s = time.monotonic()
    server.sendall(json.dumps({"trace": {"key": 1, "seq": seq}}).encode() + b"\n")
    answer = json.loads(server.makefile("rb").readline())
    assert answer == {"traced": {"key": 1, "seq": seq, "histories": [0] * 256}}
    assert time.monotonic() - began_s < DEADLINE_S
    assert connection._lost is None


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
