"""The server of control connections, spoken to by hand: what it tells whom, what it refuses, and that it ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hocket.boot import control, control_server
from hocket.boot.control import host_identity
from hocket.boot.nodes import Nodes
from hocket.errors import BootstrapMismatch, InvalidArgument

from ..naming import assert_names, raises

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 20.0


class Peer:
    """A rank's end of a connection."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._lines = self.connection.makefile("r")

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "the server closed the connection"
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)  # the reader holds the connection as well
        self.connection.close()

    def is_over(self) -> bool:
        return self._lines.readline() == ""

    def hello(self, number: int, **facts: Any) -> dict[str, Any]:
        facts = {"rank": number, "size": 2, "job": "j", "version": "1", "place": f"place {number}"} | facts
        self.send(hello=facts)
        return self.read()


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[int, subprocess.Popen[bytes]]]]:
    servers: list[subprocess.Popen[bytes]] = []

    def start(size: int = 2, timeout_s: float = 20.0) -> tuple[int, subprocess.Popen[bytes]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fd = listener.fileno()
            command = [sys.executable, "-I", "-S", control_server.__file__, str(fd), str(size), "j", str(timeout_s)]
            servers.append(subprocess.Popen(command, pass_fds=[fd], stderr=subprocess.PIPE))
            return listener.getsockname()[1], servers[-1]

    yield start
    for server in servers:
        server.kill()
        _, error = server.communicate()
        assert error == b""


def meet(port: int, size: int = 2) -> list[Peer]:
    peers = [Peer(port) for _ in range(size)]
    for rank, peer in enumerate(peers):
        assert peer.hello(rank, size=size) == {"hello": "j"}
    for peer in peers:
        facts = peer.read()["welcome"]
        assert [(each["rank"], each["place"], each["address"]) for each in facts] == [
            (rank, f"place {rank}", "127.0.0.1") for rank in range(size)
        ]
    return peers


def test_exchange_and_leaving(serve: Callable[..., Any]) -> None:
    port, server = serve()
    first, second = meet(port)
    for turn in range(3):
        first.send(exchange=f"a{turn}")
        second.send(exchange=f"b{turn}")
        assert first.read() == second.read() == {"exchange": [f"a{turn}", f"b{turn}"]}
    second.send(left={"key": 7, "seq": 3, "history": 9, "members": [0, 1]})
    assert first.read() == {"left": {"key": 7, "seq": 3, "history": 9, "rank": 1}}
    second.send(bye=None)
    second.close()
    first.send(exchange="alone")  # never answered, but nobody is said to have died either
    first.send(bye=None)
    first.connection.shutdown(socket.SHUT_WR)
    assert first.is_over()
    assert server.wait(DEADLINE_S) == 0


def test_death_and_abort_are_told(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    first, second, third = meet(port, 3)
    notice = {"key": 5, "members": [1, 0], "code": 7, "text": "why", "ranks": [0]}
    second.send(aborted=notice)
    assert first.read() == {"aborted": notice}
    first.send(aborted=notice)  # the second of one communicator: everyone knows
    second.close()
    assert first.read() == third.read() == {"gone": 1}  # the abort was not the third one's


def test_who_is_behind_and_who_did_something_else(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    peers = meet(port, 3)
    peers[0].send(stalled={"key": 5, "seq": 4, "members": [2, 1, 0]})
    for rank, (last, fingerprint, text) in enumerate([(4, 11, "this"), (3, 0, ""), (5, 12, "that")]):
        assert peers[rank].read() == {"tell": {"key": 5, "seq": 4}}
        peers[rank].send(report={"key": 5, "seq": 4, "last": last, "fingerprint": fingerprint, "text": text})
    verdict = {"key": 5, "seq": 4, "behind": [1], "mismatch": "operation number 4: rank 0: that; rank 2: this"}
    assert [peer.read() for peer in peers] == [{"verdict": verdict}] * 3


def test_who_does_not_answer_is_behind(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    first, second = meet(port)
    first.send(stalled={"key": 5, "seq": 4, "members": [0, 1]})
    assert first.read() == second.read() == {"tell": {"key": 5, "seq": 4}}
    first.send(report={"key": 5, "seq": 4, "last": 4, "fingerprint": 1, "text": "this"})
    assert first.read() == {"verdict": {"key": 5, "seq": 4, "behind": [1], "mismatch": ""}}


def test_histories_are_compared(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    peers = meet(port)
    for seq, histories in ((256, (3, 3)), (512, (4, 5))):
        for peer, history in zip(peers, histories, strict=True):
            peer.send(issued={"key": 5, "seq": seq, "history": history, "members": [0, 1]})
    for peer, histories in zip(peers, ([1, 2, 3, 4], [1, 2, 9, 8]), strict=True):
        assert peer.read() == {"trace": {"key": 5, "seq": 512}}
        peer.send(traced={"key": 5, "seq": 512, "histories": histories})
    assert peers[0].read() == {"tell": {"key": 5, "seq": 511}}  # the third of the four up to 512


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"size": 3}, ("rank 1", "3", "rank 0", "2")),
        ({"rank": 0}, ("rank 0",)),
        ({"version": "2"}, ("rank 0", "1", "rank 1", "2")),
    ],
)
def test_contradictions_are_refused(serve: Callable[..., Any], facts: dict[str, Any], names: tuple[str, ...]) -> None:
    port, _ = serve()
    first, second = Peer(port), Peer(port)
    first.hello(0)
    second.hello(1, **facts)
    told = first.read()
    assert second.read() == told and set(told) == {"refused"}
    assert_names(told["refused"], *names)


def test_another_job_goes_on_looking(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    stranger = Peer(port)
    assert stranger.hello(0, job="another") == {"hello": "j"}
    stranger.close()
    meet(port)


def test_noise_is_no_rank(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\n", b"[]\n", b'{"hello": 3}\n', b'{"serve": {}}\n', b"{}\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
            connection.sendall(noise)
            assert connection.recv(100) == b""
    meet(port)


def test_missing_ranks_are_named(serve: Callable[..., Any]) -> None:
    port, server = serve(3, 0.5)
    peer = Peer(port)
    peer.hello(1, size=3)
    assert peer.read() == {"missing": [0, 2]}
    assert server.wait(DEADLINE_S) == 0


def test_server_ends_when_nobody_comes(serve: Callable[..., Any]) -> None:
    _, server = serve(2, 0.2)
    assert server.wait(DEADLINE_S) == 0


def test_host_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_identity() == host_identity() != ""
    monkeypatch.setenv("HOCKET_HOST", "somewhere")
    assert host_identity() == "somewhere"


def test_no_port_is_free() -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        with raises(BootstrapMismatch, names=(str(port), "here", "HOCKET_CONTROL")):
            control._listen("here", [port])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0,), ("--nnodes", "1", "0")),
        ((2, 2, "a", 1), ("--node-rank", "0", "1", "2")),
        ((2, 0, "a", None), ("--master-addr", "--master-port")),
        ((2, 0, "a", 70000), ("--master-port", "1", "65535", "70000")),
    ],
)
def test_wrong_nodes(arguments: tuple[Any, ...], names: tuple[str, ...]) -> None:
    with raises(InvalidArgument, names=names):
        Nodes(*arguments)


def test_ranks_of_a_node() -> None:
    assert list(Nodes(3, 1, "a", 1).ranks(4)) == [4, 5, 6, 7]
