"""Hundreds of thousands of invalid messages: each is refused with one error, or has its literal meaning.

Structured messages are valid ones with a change; others are changed bytes of a recorded conversation, and noise.
`make soak` sends a million of each.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from hocket.boot.job_state import JobState
from hocket.boot.messages import FROM_RANK, TO_RANK, decode, encode
from hocket.boot.pmi import PmiError, PmiServer
from hocket.boot.sealed import ProtocolError, RankEnd, ServerEnd
from hocket.boot.secret import Secret

IS_SOAK = bool(os.environ.get("HOCKET_SOAK"))
NUM_MESSAGES = 1_000_000 if IS_SOAK else 5_000
pytestmark = pytest.mark.timeout(3600 if IS_SOAK else 120)
SIZE = 3
SECRET = Secret(b"k" * 32, "this test")
HELLO = {"size": SIZE, "version": "1", "local_rank": 0, "local_size": 1, "host": "h", "place": "p"}
NOTICE = {"key": 5, "seq": 256, "history": 7, "members": [0, 1, 2]}
TRUE: list[dict[str, Any]] = [
    {"exchange": "text"},
    {"aborted": {**NOTICE, "code": 3, "text": "why", "ranks": [1]}},
    {"left": NOTICE},
    {"stalled": NOTICE},
    {"issued": NOTICE},
    {
        "report": {
            "key": 5,
            "seq": 256,
            "last": 300,
            "fingerprint": 9,
            "text": "all_reduce",
            "traits": "operation=all_reduce\nsize=8",
        }
    },
    {"traced": {"key": 5, "seq": 256, "histories": [1, 2, 3]}},
    {"bye": None},
    {"hello": HELLO},
]
STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3, 255, 256, 1 << 31, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, 0.5, float("nan")),
    *("", "a", "\0", "\ud800", "x" * 70_000, [], [0], [0, 0], [0, 1, 2], [-1], [[]], {}, {"key": 1}, list(range(2000))),
]  # fmt: skip


def change(draw: random.Random, message: Any) -> Any:
    """Return a message with one value changed, removed or added."""
    if isinstance(message, dict) and message and draw.random() < 0.8:
        name = draw.choice(list(message))
        changed = dict(message)
        match draw.randrange(4):
            case 0:
                del changed[name]
            case 1:
                changed[draw.choice([*message, "strange", "key", "exchange", "__class__"])] = draw.choice(STRANGE)
            case _:
                changed[name] = change(draw, message[name])
        return changed
    if isinstance(message, list) and message and draw.random() < 0.8:
        return [*message[: draw.randrange(3)], change(draw, draw.choice(message)), *message[draw.randrange(3) :]]
    return draw.choice(STRANGE) if draw.random() < 0.5 else message


class Job:
    """A job's state, and a check of all messages that it sends."""

    def __init__(self) -> None:
        self.state = JobState(SIZE, 1000.0, self._send)
        self.num_sent = 0
        for rank in range(SIZE):
            assert self.state.welcome(rank, HELLO, "127.0.0.1", "127.0.0.1") is None

    def _send(self, rank: int, kind: str, content: object) -> None:
        assert 0 <= rank < SIZE
        assert decode(encode(kind, content), TO_RANK, SIZE)[0] == kind  # a rank accepts it
        self.num_sent += 1


def test_changed_messages_are_refused_or_believed_as_a_whole() -> None:
    draw = random.Random(3)
    job = Job()
    num_believed = 0
    for number in range(NUM_MESSAGES):
        message = change(draw, change(draw, draw.choice(TRUE)))
        try:
            kind, content = decode(json.dumps(message).encode(), FROM_RANK, SIZE)
        except ProtocolError:
            continue
        num_believed += 1
        assert FROM_RANK[kind](content, SIZE)
        json.dumps({kind: content}, ensure_ascii=False).encode()  # no text has a lone surrogate
        if kind == "hello":
            continue
        job.state.take_in(draw.randrange(SIZE), kind, content)
        if number % 100 == 0:
            job.state.handle_timeouts()
    assert NUM_MESSAGES / 20 < num_believed < NUM_MESSAGES * 0.9
    assert job.num_sent > NUM_MESSAGES / 100


def test_what_ranks_speak_of_is_forgotten_at_some_time() -> None:
    job = Job()
    for key in range(10_000):
        for kind in ("stalled", "issued"):
            job.state.take_in(key % SIZE, kind, NOTICE | {"key": key})
        job.state.take_in(0, "aborted", NOTICE | {"key": key, "code": 1, "text": "", "ranks": []})
    state = job.state
    for known in (state._questions, state._histories, state._aborted, state._traces):
        assert len(known) <= 4096


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "9" * 100_000, '"' * 3, "\xff", "", "nul"])
def test_what_is_no_json(text: str) -> None:
    for kinds in (FROM_RANK, TO_RANK):
        with pytest.raises(ProtocolError):
            decode(text.encode("latin-1"), kinds, SIZE)


def _conversation() -> tuple[ServerEnd, bytes, bytes]:
    """Return a server's end without input, the answer that it waits for, and the messages that follow."""
    server, rank = ServerEnd(SECRET, "j"), RankEnd(SECRET, "j", SIZE, 1)
    rank.take_in(bytes(server.outgoing))
    answer = bytes(rank.outgoing)
    rank.outgoing.clear()
    server.outgoing.clear()
    twin = ServerEnd(SECRET, "j")
    twin._greeting = server._greeting  # the rank can continue, and the server is new
    twin.outgoing.clear()
    twin.take_in(answer)
    rank.take_in(bytes(twin.outgoing))
    for message in TRUE[:4]:
        rank.send(json.dumps(message).encode())
    return server, answer, bytes(rank.outgoing)


def test_changed_bytes_are_never_believed() -> None:
    draw = random.Random(4)
    server, answer, messages = _conversation()
    whole = answer + messages
    assert server.take_in(whole) == [json.dumps(message).encode() for message in TRUE[:4]]
    num_refused = 0
    for _ in range(NUM_MESSAGES // 5):
        new = ServerEnd(SECRET, "j")
        new._greeting = server._greeting
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[place] ^= 1 << draw.randrange(8)
                case 1:
                    del data[place : place + draw.randrange(1, 50)]
                case 2:
                    data[place:place] = draw.randbytes(draw.randrange(1, 50))
                case _:
                    data[place:] = draw.randbytes(draw.randrange(300))
            if not data:
                break
        came: list[bytes] = []
        try:
            while data:
                piece = draw.randrange(1, 200)
                came += new.take_in(bytes(data[:piece]))
                del data[:piece]
        except ProtocolError:
            num_refused += 1
        # the accepted messages are exactly the first messages sent
        assert came == [json.dumps(message).encode() for message in TRUE[: len(came)]]
        assert len(new._pending) <= 1 << 20
    assert num_refused > NUM_MESSAGES // 10


def test_noise_to_an_mpi_server() -> None:
    draw = random.Random(5)
    server = PmiServer(SIZE)
    words = [
        "cmd=put",
        "cmd=get",
        "cmd=barrier_in",
        "cmd=finalize",
        "cmd=init",
        "key=a",
        "key=",
        "value=b c",
        "=",
        "cmd=",
    ]
    for _ in range(NUM_MESSAGES):
        if draw.random() < 0.7:
            data = (" ".join(draw.choices(words, k=draw.randrange(1, 6))) + draw.choice(["\n", "\n", ""])).encode()
        else:
            data = draw.randbytes(draw.randrange(300))
        try:
            answers = list(server.take_in(draw.randrange(SIZE), data))
        except PmiError:
            server = PmiServer(SIZE)
            continue
        assert all(0 <= receiver < SIZE and answer.endswith(b"\n") for receiver, answer in answers)
    assert len(server.values) <= 64 * SIZE
