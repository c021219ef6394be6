"""The PMI-1 server: its answers, and that it ends and leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.boot import pmi
from hocket.boot.pmi import PmiServer, _Rank

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 20.0


class Peer:
    """A rank's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        self.connection = connection
        self._lines = connection.makefile("r", newline="\n")

    def send(self, text: str) -> None:
        self.connection.sendall(text.encode())

    def read(self) -> str:
        return self._lines.readline()

    def ask(self, line: str) -> str:
        self.send(f"{line}\n")
        return self.read()

    def has_answer(self) -> bool:
        return bool(select.select([self.connection], [], [], 0)[0])

    def close(self) -> None:
        self._lines.close()
        self.connection.close()


@pytest.fixture
def members() -> Iterator[tuple[PmiServer, list[_Rank], list[Peer]]]:
    """A server of two ranks that have both connected, and their ends."""
    server = PmiServer(2, name="hocket_test")
    pairs = [socket.socketpair() for _ in range(2)]
    server.ranks = [_Rank(ours) for ours, _ in pairs]
    peers = [Peer(theirs) for _, theirs in pairs]
    yield server, server.ranks, peers
    for peer in peers:
        peer.close()
    for ours, _ in pairs:
        ours.close()


Members = tuple[PmiServer, list[_Rank], list[Peer]]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("cmd=initack pmiid=1", "cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n"),
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096\n"),
        ("cmd=get_appnum", "cmd=appnum appnum=0\n"),
        ("cmd=get_universe_size", "cmd=universe_size size=2\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=hocket_test\n"),
        ("cmd=put kvsname=hocket_test key=a value=b", "cmd=put_result rc=0 msg=success\n"),
        ("cmd=get kvsname=hocket_test key=a", "cmd=get_result rc=-1 msg=key_a_not_found value=unknown\n"),
        ("cmd=barrier_in", ""),
        ("cmd=finalize", "cmd=finalize_ack rc=0\n"),
        ("cmd=spawn nprocs=3", "cmd=spawn rc=-1 msg=unknown_command\n"),
        ("hello", "cmd=None rc=-1 msg=unknown_command\n"),
    ],
)
def test_answers(members: Members, line: str, answer: str) -> None:
    server, ranks, _ = members
    assert server.answer(ranks[0], line) == answer


@pytest.mark.parametrize(
    "value", ["b", "two words", "a=b", "a=b c=d e", "x" * 4000, "description#host$port#80$", "a value=b", " a"]
)
def test_put_and_get(members: Members, value: str) -> None:
    server, (first, second), _ = members
    assert server.answer(first, f"cmd=put kvsname=hocket_test key=P0 value={value}") == (
        "cmd=put_result rc=0 msg=success\n"
    )
    server.answer(first, "cmd=put kvsname=hocket_test key=P1 value=other")
    assert server.answer(second, "cmd=get kvsname=hocket_test key=P0") == (
        f"cmd=get_result rc=0 msg=success value={value}\n"
    )


@pytest.mark.parametrize("value", ["a key=P1", "a cmd=get"])
def test_a_value_may_look_like_a_command(members: Members, value: str) -> None:
    server, (first, second), _ = members
    server.answer(first, f"cmd=put kvsname=hocket_test key=P0 value={value}")
    assert server.answer(second, "cmd=get kvsname=hocket_test key=P0") == (
        f"cmd=get_result rc=0 msg=success value={value}\n"
    )


def test_lines_may_come_in_pieces(members: Members) -> None:
    server, (first, _), (peer, _) = members
    server.receive(first, b"cmd=get_app")
    assert not peer.has_answer()
    server.receive(first, b"num\ncmd=get_universe_size\ncmd=")
    assert (peer.read(), peer.read()) == ("cmd=appnum appnum=0\n", "cmd=universe_size size=2\n")
    server.receive(first, b"finalize\n")
    assert peer.read() == "cmd=finalize_ack rc=0\n"


def test_barrier_waits_for_all(members: Members) -> None:
    server, ranks, peers = members
    for _ in range(2):  # more than once
        server.receive(ranks[1], b"cmd=barrier_in\n")
        server.receive(ranks[1], b"cmd=get_appnum\n")  # whatever else comes meanwhile
        assert peers[1].read() == "cmd=appnum appnum=0\n"
        assert not any(peer.has_answer() for peer in peers)
        server.receive(ranks[0], b"cmd=barrier_in\n")
        assert [peer.read() for peer in peers] == ["cmd=barrier_out rc=0\n"] * 2
        assert not any(peer.has_answer() for peer in peers)


def test_barrier_waits_for_those_who_have_not_come(members: Members) -> None:
    server, ranks, peers = members
    late = server.ranks.pop()
    server.receive(ranks[0], b"cmd=barrier_in\n")
    assert not peers[0].has_answer()
    server.ranks.append(late)
    server.receive(late, b"cmd=barrier_in\n")
    assert [peer.read() for peer in peers] == ["cmd=barrier_out rc=0\n"] * 2


def test_names_differ() -> None:
    assert PmiServer(2).name != PmiServer(2).name


def connect(port: int) -> Peer:
    return Peer(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))


def has_ended(descriptor: int, timeout_s: float) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A server of two ranks, whose parent is this process."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", pmi.__file__, "127.0.0.1", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def read_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def shared_memory_of(name: str) -> Path:
    """By MPICH's way of naming it: FNV-1a, of 32 bits."""
    value = 0x811C9DC5
    for byte in name.encode():
        value ^= byte
        value = value * 0x01000193 % 2**32
    return Path(f"/dev/shm/mpich_shm_{value:x}_0")


def test_hash_is_fnv_1a() -> None:
    # From the reference's test vectors (http://www.isthe.com/chongo/tech/comp/fnv).
    assert shared_memory_of("").name == "mpich_shm_811c9dc5_0"
    assert shared_memory_of("a").name == "mpich_shm_e40c292c_0"
    assert shared_memory_of("foobar").name == "mpich_shm_bf9cf968_0"


def test_ends_when_all_have_gone_and_removes_remains(server: subprocess.Popen[str]) -> None:
    port = read_port(server)
    first, second = connect(port), connect(port)
    assert first.ask("cmd=initack pmiid=0") == "cmd=initack rc=0\n"
    assert [first.read() for _ in range(3)] == ["cmd=set size=2\n", "cmd=set rank=0\n", "cmd=set debug=0\n"]
    name = first.ask("cmd=get_my_kvsname").removeprefix("cmd=my_kvsname kvsname=").strip()
    assert second.ask("cmd=get_my_kvsname") == f"cmd=my_kvsname kvsname={name}\n"
    own, others = shared_memory_of(name), shared_memory_of(f"{name} of another job")
    try:
        own.touch()
        own.with_name(own.name.removesuffix("0") + "1").touch()
        others.touch()
        first.close()
        assert second.ask("cmd=get_appnum") == "cmd=appnum appnum=0\n"  # one goes, the others are served
        assert server.poll() is None
        second.close()
        assert server.wait(DEADLINE_S) == 0
        assert not own.exists() and not own.with_name(own.name.removesuffix("0") + "1").exists()
        assert others.exists()
    finally:
        for path in (own, own.with_name(own.name.removesuffix("0") + "1"), others):
            path.unlink(missing_ok=True)


def test_barrier_of_real_connections(server: subprocess.Popen[str]) -> None:
    port = read_port(server)
    first = connect(port)
    first.send("cmd=barrier_in\n")
    assert first.ask("cmd=get_appnum") == "cmd=appnum appnum=0\n"  # the other has not even come
    second = connect(port)
    assert second.ask("cmd=put key=k value=a = b") == "cmd=put_result rc=0 msg=success\n"
    assert not first.has_answer()
    second.send("cmd=barrier_in\n")
    assert (first.read(), second.read()) == ("cmd=barrier_out rc=0\n",) * 2
    assert first.ask("cmd=get key=k") == "cmd=get_result rc=0 msg=success value=a = b\n"
    first.close()
    second.close()
    assert server.wait(DEADLINE_S) == 0


def test_killed_rank_counts_as_gone(server: subprocess.Popen[str]) -> None:
    program = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(1); input()"
    rank = subprocess.Popen(
        [sys.executable, "-uc", program, str(read_port(server))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    rank.kill()
    rank.communicate(timeout=DEADLINE_S)
    assert server.wait(DEADLINE_S) == 0


# Starts a server, hands on what it prints and its process id, and ends when told to.
_PARENT = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], "127.0.0.1", "2"], stdout=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, start_new_session=True)
print(server.pid, server.stdout.readline().strip(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("came", [False, True], ids=["nobody came", "a rank is there"])
def test_death_of_the_parent(came: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, pmi.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server_pid, port = map(int, parent.stdout.readline().split())
    descriptor = os.pidfd_open(server_pid)
    try:
        assert not has_ended(descriptor, 0)
        peer = connect(port) if came else None
        if peer is not None:
            assert peer.ask("cmd=get_appnum") == "cmd=appnum appnum=0\n"
        parent.kill()
        parent.communicate(timeout=DEADLINE_S)
        if peer is not None:
            assert peer.ask("cmd=get_universe_size") == "cmd=universe_size size=2\n"  # it outlives its parent
            peer.close()
        assert has_ended(descriptor, DEADLINE_S)
    finally:
        if not has_ended(descriptor, 0):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        parent.kill()
        parent.communicate()
