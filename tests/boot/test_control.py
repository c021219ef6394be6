"""The server of control connections, with hand-made messages: what it sends to which rank, what it refuses, its end."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from hocket.boot.connecting import Place, connect_once
from hocket.boot.helper import ServerTask, helper_command
from hocket.boot.joining import host_identity
from hocket.boot.nodes import Nodes
from hocket.boot.sealed import Role, WrongServer
from hocket.boot.secret import Secret
from hocket.boot.sockets import Interface
from hocket.errors import InvalidArgument

from ..naming import assert_names, raises

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 20.0


SECRET = Secret(b"k" * 32, "this test")


HERE = Interface(socket.AF_INET, ("127.0.0.1",))


class Peer:
    """A rank's end of an authenticated connection."""

    def __init__(
        self,
        port: int,
        rank: int = 0,
        size: int = 2,
        job: str = "j",
        secret: Secret = SECRET,
        role: Role = Role.CONTROL,
    ) -> None:
        self.connection, self._end = connect_once(HERE, port, Place(secret, job, size, rank, role))
        self.connection.settimeout(DEADLINE_S)
        self._came: list[bytes] = []

    def send_bytes(self, message: bytes) -> None:
        self._end.send(message)
        self.connection.sendall(self._end.outgoing)
        self._end.outgoing.clear()

    def send(self, **message: Any) -> None:
        self.send_bytes(json.dumps(message).encode())

    def read_bytes(self) -> bytes:
        while not self._came:
            data = self.connection.recv(1 << 16)
            assert data, "the server closed the connection"
            self._came += self._end.take_in(data)
        return self._came.pop(0)

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.read_bytes())
        return message

    def close(self) -> None:
        self.connection.close()

    def is_over(self) -> bool:
        return not self._came and self.connection.recv(100) == b""

    def hello(self, **facts: Any) -> None:
        own = {"size": 2, "version": "1", "local_rank": 0, "local_size": 1, "host": "h", "place": "somewhere"}
        self.send(hello=own | facts)


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[int, subprocess.Popen[bytes]]]]:
    servers: list[subprocess.Popen[bytes]] = []

    def start(size: int = 2, timeout_s: float = 20.0) -> tuple[int, subprocess.Popen[bytes]]:
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            task = ServerTask([listener.fileno()], size, "j", timeout_s, SECRET.key.hex())
            command = helper_command("hocket.boot.control_server")
            server = subprocess.Popen(command, pass_fds=task.fds, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            servers.append(server)
            assert server.stdin is not None
            server.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
            server.stdin.flush()
            return listener.getsockname()[1], server

    yield start
    for server in servers:
        server.kill()
        _, error = server.communicate()
        assert error == b""


def meet(port: int, size: int = 2) -> list[Peer]:
    peers = [Peer(port, rank, size) for rank in range(size)]
    for rank, peer in enumerate(peers):
        peer.hello(size=size, place=f"place {rank}")
    nonces = set()
    for peer in peers:
        welcome = peer.read()["welcome"]
        nonces.add(welcome["nonce"])
        assert [(each["place"], each["address"]) for each in welcome["members"]] == [
            (f"place {rank}", "127.0.0.1") for rank in range(size)
        ]
    assert len(nonces) == 1
    return peers


def notice(key: int, seq: int, members: list[int], history: int = 0) -> dict[str, Any]:
    return {"key": key, "seq": seq, "history": history, "members": members}


def test_exchange_and_leaving(serve: Callable[..., Any]) -> None:
    port, server = serve()
    first, second = meet(port)
    for turn in range(3):
        first.send(exchange=f"a{turn}")
        second.send(exchange=f"b{turn}")
        assert first.read() == second.read() == {"exchange": [f"a{turn}", f"b{turn}"]}
    second.send(left=notice(7, 3, [0, 1], history=9))
    assert first.read() == {"left": {"key": 7, "seq": 3, "history": 9, "rank": 1}}
    second.send(bye=None)
    second.close()
    first.send(exchange="alone")  # no answer, but also no report of a death
    first.send(bye=None)
    first.connection.shutdown(socket.SHUT_WR)
    assert first.is_over()
    assert server.wait(DEADLINE_S) == 0


def test_death_and_abort_are_told(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    first, second, third = meet(port, 3)
    reason = {"code": 7, "text": "why", "ranks": [0]}
    second.send(aborted=notice(5, 0, [1, 0]) | reason)
    assert first.read() == {"aborted": {"key": 5} | reason}
    first.send(aborted=notice(5, 0, [1, 0]) | reason)  # a second abort of one communicator is not sent again
    second.close()
    assert first.read() == third.read() == {"gone": 1}  # not the abort of the third rank


def test_who_is_behind_and_who_did_something_else(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    peers = meet(port, 3)
    peers[0].send(stalled=notice(5, 4, [2, 1, 0]))
    for rank, (last, fingerprint, text) in enumerate([(4, 11, "this"), (3, 0, ""), (5, 12, "that")]):
        assert peers[rank].read() == {"tell": {"key": 5, "seq": 4}}
        peers[rank].send(
            report={
                "key": 5,
                "seq": 4,
                "last": last,
                "fingerprint": fingerprint,
                "text": text,
                "traits": f"root={text}",
            }
        )
    wanted = ["root=that", "root=this"]
    verdict = {"key": 5, "seq": 4, "behind": [1], "mismatch": "rank 0: that; rank 2: this", "wanted": wanted}
    assert [peer.read() for peer in peers] == [{"verdict": verdict}] * 3


def test_who_does_not_answer_is_behind(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    first, second = meet(port)
    first.send(stalled=notice(5, 4, [0, 1]))
    assert first.read() == second.read() == {"tell": {"key": 5, "seq": 4}}
    first.send(report={"key": 5, "seq": 4, "last": 4, "fingerprint": 1, "text": "this", "traits": ""})
    assert first.read() == {"verdict": {"key": 5, "seq": 4, "behind": [1], "mismatch": "", "wanted": []}}


def test_histories_are_compared(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    peers = meet(port)
    for seq, issued in ((256, (3, 3)), (512, (4, 5))):
        for peer, history in zip(peers, issued, strict=True):
            peer.send(issued=notice(5, seq, [0, 1], history))
    for peer, histories in zip(peers, ([1, 2, 3, 4], [1, 2, 9, 8]), strict=True):
        assert peer.read() == {"trace": {"key": 5, "seq": 512}}
        peer.send(traced={"key": 5, "seq": 512, "histories": histories})
    assert peers[0].read() == {"tell": {"key": 5, "seq": 511}}  # the third of the last four, up to 512


@pytest.mark.parametrize(
    ("rank", "facts", "names"),
    [
        (1, {"size": 3}, ("rank 1", "3", "rank 0", "2")),
        (0, {}, ("rank 0",)),
        (1, {"version": "2"}, ("rank 0", "1", "rank 1", "2")),
    ],
)
def test_contradictions_are_refused(
    serve: Callable[..., Any], rank: int, facts: dict[str, Any], names: tuple[str, ...]
) -> None:
    port, _ = serve()
    first = Peer(port)
    first.hello()
    second = Peer(port, rank)
    second.hello(**facts)
    told = first.read()
    assert second.read() == told and set(told) == {"refused"}
    assert_names(told["refused"], *names)


def test_who_comes_too_late_goes_on_looking(serve: Callable[..., Any]) -> None:
    port, _ = serve()
    peers = meet(port)
    with pytest.raises(WrongServer):
        Peer(port, 1)
    for peer, text in zip(peers, "ab", strict=True):
        peer.send(exchange=text)
    assert [peer.read() for peer in peers] == [{"exchange": ["a", "b"]}] * 2


def test_the_port_is_free_as_soon_as_a_rank_has_left(serve: Callable[..., Any]) -> None:
    """The server continues for other ranks, or for MPI."""
    port, server = serve()
    first, second = meet(port)
    second.send(bye=None)
    second.close()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    first.send(gather={"key": 9, "members": [0], "text": "a"})
    assert first.read() == {"gathered": {"key": 9, "texts": ["a"]}}
    assert server.poll() is None


@pytest.mark.parametrize("rank", [2, 1 << 31])
def test_ranks_that_there_are_not_are_told(serve: Callable[..., Any], rank: int) -> None:
    port, _ = serve()
    other = Peer(port, rank)
    other.hello()
    assert_names(other.read()["refused"], f"rank {rank}", "2 ranks")
    assert other.is_over()
    first = Peer(port)  # it arrives later
    first.hello()
    assert_names(first.read()["refused"], f"rank {rank}", "2 ranks")


def test_why_a_rank_cannot_start_is_told_to_the_others(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    first, second, third = meet(port, 3)
    third.send(failed="no memory")
    third.send(bye=None)
    third.close()
    assert first.read() == second.read() == {"failed": {"rank": 2, "text": "no memory"}}
    first.send(gather={"key": 9, "members": [0], "text": "a"})
    assert first.read() == {"gathered": {"key": 9, "texts": ["a"]}}  # and no report of a death


@pytest.mark.parametrize("has_come", [False, True])
def test_a_server_that_nobody_wants_any_more_ends(serve: Callable[..., Any], has_come: bool) -> None:
    """Before rank 0 has joined, it runs only until the process that started it closes the pipe."""
    port, server = serve(3, 600)
    other = Peer(port, 1, 3)
    other.hello(size=3)
    if has_come:
        zero = Peer(port, 0, 3)
        zero.hello(size=3)
    server.stdin.close()
    server.stdin = None
    if has_come:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.3)
    else:
        assert other.read() == {"gone": 0}
        server.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("secret", "job", "is_of_job"), [(b"K" * 32, "j", True), (b"k" * 32, "another", False), (b"K" * 32, "i", False)]
)
def test_whoever_has_another_secret_or_job_goes_on_looking(
    serve: Callable[..., Any], secret: bytes, job: str, is_of_job: bool
) -> None:
    port, _ = serve()
    with pytest.raises(WrongServer) as caught:
        Peer(port, secret=Secret(secret, "another"), job=job)
    assert caught.value.is_of_job is is_of_job
    meet(port)


SAID_BY_NO_RANK: dict[str, bytes] = {
    "no JSON": b"hello",
    "no object": b"[]",
    "no message": b"{}",
    "two messages": b'{"bye": null, "exchange": ""}',
    "unknown message": b'{"serve": {}}',
    "what only servers say": b'{"gone": 1}',
    "deep": b"[" * 200_000,
    "number of 5000 digits": b'{"stalled": ' + b"1" * 5000 + b"}",
    "hello again": json.dumps(
        {"hello": {"size": 2, "version": "1", "local_rank": 0, "local_size": 1, "host": "h", "place": "p"}}
    ).encode(),
    "hello without facts": b'{"hello": {}}',
    "abort without members": b'{"aborted": {"key": 1}}',
    "abort of members that are none": json.dumps({"aborted": notice(1, 1, [0, 7])}).encode(),
    "members twice": json.dumps({"left": notice(1, 1, [0, 0])}).encode(),
    "negative key": json.dumps({"left": notice(-1, 1, [0, 1])}).encode(),
    "key beyond 64 bits": json.dumps({"left": notice(1 << 64, 1, [0, 1])}).encode(),
    "truth as a number": b'{"left": {"key": true, "seq": 1, "history": 1, "members": [0, 1]}}',
    "fraction": b'{"left": {"key": 1.5, "seq": 1, "history": 1, "members": [0, 1]}}',
    "not a number": b'{"left": {"key": NaN, "seq": 1, "history": 1, "members": [0, 1]}}',
    "too many histories": json.dumps({"traced": {"key": 1, "seq": 1, "histories": [0] * 1025}}).encode(),
    "text of another kind": b'{"exchange": ["a"]}',
}


@pytest.mark.parametrize("name", SAID_BY_NO_RANK)
def test_what_no_rank_says_ends_its_connection_alone(serve: Callable[..., Any], name: str) -> None:
    port, _ = serve(3)
    first, second, third = meet(port, 3)
    third.send_bytes(SAID_BY_NO_RANK[name])
    assert first.read() == second.read() == {"gone": 2}
    assert set(third.read()) == {"refused"} and third.is_over()
    first.send(stalled=notice(5, 4, [0, 1]))
    assert first.read() == second.read() == {"tell": {"key": 5, "seq": 4}}


def test_a_message_that_was_changed_or_repeated_ends_the_connection(serve: Callable[..., Any]) -> None:
    changes: list[Callable[[bytes], bytes]] = [
        lambda data: data[:-1] + b"!",
        lambda data: data + data,
        lambda data: b"\xff" + data[1:],
    ]
    for change in changes:
        port, _ = serve()
        first, second = meet(port)
        second._end.send(b'{"exchange": "a"}')
        second.connection.sendall(change(bytes(second._end.outgoing)))
        assert first.read() == {"gone": 1}


def test_lines_of_mpi_libraries_are_handed_on(serve: Callable[..., Any]) -> None:
    port, server = serve()
    ranks = meet(port)
    libraries = [Peer(port, rank, role=Role.PMI) for rank in range(2)]
    libraries[0].send_bytes(b"cmd=put kvsname=a key=P0 value=here\ncmd=barr")
    assert libraries[0].read_bytes() == b"cmd=put_result rc=0 msg=success\n"
    libraries[0].send_bytes(b"ier_in\n")
    libraries[1].send_bytes(b"cmd=barrier_in\n")
    assert [each.read_bytes() for each in libraries] == [b"cmd=barrier_out rc=0\n"] * 2
    libraries[1].send_bytes(b"cmd=get kvsname=a key=P0\n")
    assert libraries[1].read_bytes() == b"cmd=get_result rc=0 msg=success value=here\n"
    second = Peer(port, 1, role=Role.PMI)  # a second connection of the same rank
    second.send_bytes(b"cmd=get_appnum\n")
    assert second.is_over()
    libraries[1].send_bytes(b"a" * 20_000)  # longer than any valid line
    assert libraries[1].is_over()
    for rank in ranks:
        rank.send(bye=None)
        rank.close()
    libraries[0].send_bytes(b"cmd=finalize\n")  # MPI is finalized after hocket
    assert libraries[0].read_bytes() == b"cmd=finalize_ack rc=0\n"
    libraries[0].close()
    assert server.wait(DEADLINE_S) == 0


def test_some_ranks_come_together(serve: Callable[..., Any]) -> None:
    port, _ = serve(3)
    peers = meet(port, 3)
    for rank, text in ((2, "c"), (0, "a")):
        peers[rank].send(gather={"key": 9, "members": [2, 0], "text": text})
    assert peers[0].read() == peers[2].read() == {"gathered": {"key": 9, "texts": ["c", "a"]}}


@pytest.mark.parametrize("num_connections", [1018, 3000])
def test_connections_that_prove_nothing_are_bounded(serve: Callable[..., Any], num_connections: int) -> None:
    port, server = serve()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    held = []
    for _ in range(min(num_connections, most - 200)):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
    peers = meet(port)
    assert len(os.listdir(f"/proc/{server.pid}/fd")) < 256 + 20
    for each in held:
        each.close()
    for peer, text in zip(peers, "ab", strict=True):
        peer.send(exchange=text)
    assert [peer.read() for peer in peers] == [{"exchange": ["a", "b"]}] * 2


def test_a_server_without_descriptors_goes_on(serve: Callable[..., Any]) -> None:
    port, server = serve()
    first = Peer(port)
    first.hello()
    num_open = len(os.listdir(f"/proc/{server.pid}/fd"))
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (num_open + 3, num_open + 3))
    held = [socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) for _ in range(50)]
    second = Peer(port, 1)
    second.hello()
    assert set(first.read()) == set(second.read()) == {"welcome"}
    for each in held:
        each.close()


def test_missing_ranks_are_named(serve: Callable[..., Any]) -> None:
    port, server = serve(3, 0.5)
    peer = Peer(port, 1, 3)
    peer.hello(size=3)
    assert peer.read() == {"missing": [0, 2]}
    assert server.wait(DEADLINE_S) == 0


def test_server_ends_when_nobody_comes(serve: Callable[..., Any]) -> None:
    _, server = serve(2, 0.2)
    assert server.wait(DEADLINE_S) == 0


def test_host_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_identity() == host_identity() != ""
    monkeypatch.setenv("HOCKET_HOST", "somewhere")
    assert host_identity() == "somewhere"


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
