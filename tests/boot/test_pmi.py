"""The PMI-1 server: its answers, its checks of clients, its end, and that no file remains."""

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

from hocket.boot.pmi import PmiError, PmiServer, connect_locally

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
def job() -> PmiServer:
    """The state of a job of two ranks."""
    return PmiServer(2, name="hocket_test")


def take_in(server: PmiServer, rank: int, data: bytes) -> list[tuple[int, str]]:
    return [(receiver, answer.decode()) for receiver, answer in server.take_in(rank, data)]


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
def test_answers(job: PmiServer, line: str, answer: str) -> None:
    assert job.answer(1, line) == answer


@pytest.mark.parametrize(
    "value", ["b", "two words", "a=b", "a=b c=d e", "x" * 4000, "description#host$port#80$", "a value=b", " a"]
)
def test_put_and_get(job: PmiServer, value: str) -> None:
    assert job.answer(0, f"cmd=put kvsname=hocket_test key=P0 value={value}") == "cmd=put_result rc=0 msg=success\n"
    job.answer(0, "cmd=put kvsname=hocket_test key=P1 value=other")
    assert job.answer(1, "cmd=get kvsname=hocket_test key=P0") == f"cmd=get_result rc=0 msg=success value={value}\n"


@pytest.mark.parametrize("value", ["a key=P1", "a cmd=get"])
def test_a_value_may_look_like_a_command(job: PmiServer, value: str) -> None:
    job.answer(0, f"cmd=put kvsname=hocket_test key=P0 value={value}")
    assert job.answer(1, "cmd=get kvsname=hocket_test key=P0") == f"cmd=get_result rc=0 msg=success value={value}\n"


def test_values_are_counted(job: PmiServer) -> None:
    for number in range(128):
        assert "rc=0" in job.answer(0, f"cmd=put kvsname=hocket_test key=P{number} value=a")
    assert "rc=-1" in job.answer(1, "cmd=put kvsname=hocket_test key=P128 value=a")
    assert "rc=0" in job.answer(1, "cmd=put kvsname=hocket_test key=P127 value=b")


def test_lines_may_come_in_pieces(job: PmiServer) -> None:
    assert take_in(job, 0, b"cmd=get_app") == []
    assert take_in(job, 0, b"num\ncmd=get_universe_size\ncmd=") == [
        (0, "cmd=appnum appnum=0\n"),
        (0, "cmd=universe_size size=2\n"),
    ]
    assert take_in(job, 0, b"finalize\n") == [(0, "cmd=finalize_ack rc=0\n")]


@pytest.mark.parametrize("data", [b"a" * (1 << 15), b"\n" + b"a" * (1 << 15) + b"\n"])
def test_lines_have_a_length(job: PmiServer, data: bytes) -> None:
    with pytest.raises(PmiError):
        take_in(job, 0, data)


def test_barrier_waits_for_all(job: PmiServer) -> None:
    for _ in range(2):  # more than once
        assert take_in(job, 1, b"cmd=barrier_in\n") == []
        assert take_in(job, 1, b"cmd=barrier_in\n") == []  # one rank twice is one rank
        assert take_in(job, 1, b"cmd=get_appnum\n") == [(1, "cmd=appnum appnum=0\n")]  # with other messages meanwhile
        assert take_in(job, 0, b"cmd=barrier_in\n") == [(rank, "cmd=barrier_out rc=0\n") for rank in range(2)]


def test_who_has_left_is_not_in_the_barrier(job: PmiServer) -> None:
    take_in(job, 1, b"cmd=barrier_in\ncmd=ge")
    job.leave(1)
    assert take_in(job, 0, b"cmd=barrier_in\n") == []
    assert take_in(job, 1, b"cmd=barrier_in\n") == [(rank, "cmd=barrier_out rc=0\n") for rank in range(2)]


def test_names_differ() -> None:
    assert PmiServer(2).name != PmiServer(2).name


def connect(name: str, rank: int) -> Peer:
    return Peer(connect_locally(name, rank))


# Starts a server, prints its name, and exits on request.
_PARENT = """
import sys
from hocket.boot.pmi import start_local_server
print(start_local_server(2), flush=True)
sys.stdin.read()
"""


class Server:
    """A server for two ranks, and the process that started it."""

    def __init__(self) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.parent.stdout is not None
        self.name = self.parent.stdout.readline().strip()
        [pid] = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text().split()
        self.descriptor = os.pidfd_open(int(pid))

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        return bool(select.select([self.descriptor], [], [], timeout_s)[0])

    def close(self) -> None:
        if not self.has_ended():
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        os.close(self.descriptor)
        self.parent.kill()
        self.parent.communicate()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def shared_memory_of(name: str) -> Path:
    """Named as MPICH does: FNV-1a with 32 bits."""
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


def test_ends_when_all_have_gone_and_removes_remains(server: Server) -> None:
    first, second = connect(server.name, 0), connect(server.name, 1)
    name = first.ask("cmd=get_my_kvsname").removeprefix("cmd=my_kvsname kvsname=").strip()
    assert second.ask("cmd=get_my_kvsname") == f"cmd=my_kvsname kvsname={name}\n"
    own, others = shared_memory_of(name), shared_memory_of(f"{name} of another job")
    try:
        own.touch()
        own.with_name(own.name.removesuffix("0") + "1").touch()
        others.touch()
        first.close()
        assert second.ask("cmd=get_appnum") == "cmd=appnum appnum=0\n"  # after one has left, others are served
        assert not server.has_ended()
        second.close()
        assert server.has_ended(DEADLINE_S)
        assert not own.exists() and not own.with_name(own.name.removesuffix("0") + "1").exists()
        assert others.exists()
    finally:
        for path in (own, own.with_name(own.name.removesuffix("0") + "1"), others):
            path.unlink(missing_ok=True)


def test_barrier_of_real_connections(server: Server) -> None:
    first = connect(server.name, 0)
    first.send("cmd=barrier_in\n")
    assert first.ask("cmd=get_appnum") == "cmd=appnum appnum=0\n"  # the other has not even connected
    second = connect(server.name, 1)
    assert second.ask("cmd=put key=k value=a = b") == "cmd=put_result rc=0 msg=success\n"
    assert not first.has_answer()
    second.send("cmd=barrier_in\n")
    assert (first.read(), second.read()) == ("cmd=barrier_out rc=0\n",) * 2
    assert first.ask("cmd=get key=k") == "cmd=get_result rc=0 msg=success value=a = b\n"
    first.close()
    second.close()
    assert server.has_ended(DEADLINE_S)


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b"cmd=init pmi_version=1\n",
        b"cmd=initack pmiid=2\n",
        b"cmd=initack pmiid=-1\n",
        b"cmd=initack pmiid=0\n",
        b"cmd=initack pmiid=" + b"1" * 5000 + b"\n",
        b"a" * (1 << 15),
        b"\n",
    ],
)
def test_who_is_no_rank_counts_as_none(server: Server, line: bytes) -> None:
    first = connect(server.name, 0)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(DEADLINE_S)
        stranger.connect(f"\0{server.name}")
        stranger.sendall(line)
        assert stranger.recv(1000) == b""
    first.send("cmd=barrier_in\n")
    second = connect(server.name, 1)
    assert second.ask("cmd=barrier_in") == first.read() == "cmd=barrier_out rc=0\n"


def test_who_says_nothing_keeps_nobody_waiting(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{server.name}")
        ranks = [connect(server.name, rank) for rank in range(2)]
        for rank in ranks:
            rank.send("cmd=barrier_in\n")
        assert [rank.read() for rank in ranks] == ["cmd=barrier_out rc=0\n"] * 2
        for rank in ranks:
            rank.close()
        assert server.has_ended(DEADLINE_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_refused(server: Server) -> None:
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1]);"
        "s.sendall(b'cmd=initack pmiid=1\\n'); s.settimeout(20); print(len(s.recv(1000)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, server.name], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout == "0\n" or "BrokenPipeError" in done.stderr or "ConnectionResetError" in done.stderr
    connect(server.name, 1)  # its number is free again


def test_server_of_another_user_is_not_believed() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]);"
        "s.listen(1); print('up', flush=True); s.accept(); sys.stdin.read()"
    )
    name = f"hocket-test-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConnectionError):
            connect_locally(name, 0)


def test_killed_rank_counts_as_gone(server: Server) -> None:
    program = "import sys; from hocket.boot.pmi import *; s = connect_locally(sys.argv[1], 0); input('1\\n')"
    rank = subprocess.Popen(
        [sys.executable, "-uc", program, server.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    rank.kill()
    rank.communicate(timeout=DEADLINE_S)
    assert server.has_ended(DEADLINE_S)


@pytest.mark.parametrize("came", [False, True], ids=["nobody came", "a rank is there"])
def test_death_of_the_parent(server: Server, came: bool) -> None:
    peer = connect(server.name, 0) if came else None
    server.parent.kill()
    server.parent.communicate(timeout=DEADLINE_S)
    if peer is not None:
        assert peer.ask("cmd=get_universe_size") == "cmd=universe_size size=2\n"  # it outlives its parent
        peer.close()
    assert server.has_ended(DEADLINE_S)
