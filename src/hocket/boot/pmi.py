"""A PMI-1 server: the process manager that MPICH needs, so that it starts under any launcher.

The protocol is lines of ``key=value`` words (PMI-1, in MPICH's src/pmi): a rank sends its number (initack), puts its
address, enters a barrier and gets the addresses of the others. MPI libraries cannot authenticate, so they never connect
to a port: each gets a connected unix socket (PMI_FD).

* Under `hocket run` the launcher has the other end (`hocket.boot.mpi_sockets`).
* Under other launchers, on one host, a process started by rank 0 has it; the kernel reports the user of each client.
* Between hosts, a helper process beside each rank (`hocket.boot.pmi_relay`) has it and relays the lines to the server
  of the control connections; a thread of the rank would be blocked while the rank starts MPI.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hocket.boot.helper import start_pmi_server
from hocket.boot.mpi_variables import OWN

_SPAWNS = re.compile(rb"(totspawns|spawnssofar)=([0-9]{1,9})")
ENDED = re.compile(rb"cmd=hocket_ended code=(-?[0-9]{1,5})")
"""Message of another host's launcher about a rank that has ended, after the messages of its library."""
ABORT = re.compile(rb"^cmd=abort exitcode=(-?[0-9]{1,10})(?=[ \n]|$)", re.MULTILINE)
_MOST_LINE = 16 << 10
_MOST_VALUES = 64  # values that a rank may put; MPICH puts a few
_TIMEOUT_S = 20.0


class PmiError(Exception):
    """A connection sends what no MPI library sends."""


@dataclass
class PmiServer:
    """The state of one job: values put by ranks, and ranks that wait in the barrier."""

    size: int
    # (hosts, ranks on each). If unknown, MPICH compares host names, which may be equal in several containers.
    hosts: tuple[int, int] | None = None
    # MPICH derives the name of its shared memory from it, so it must differ from those of earlier jobs.
    name: str = field(default_factory=lambda: f"hocket_{os.urandom(8).hex()}")
    values: dict[str, str] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    """Ranks whose MPI has started to initialize."""
    begun_s: float | None = None
    """Time when the first of them did, by `time.monotonic`."""
    has_started: bool = False
    """Whether all ranks have passed the barrier of MPI_Init; this server cannot distinguish that of MPI_Finalize."""
    ended: dict[int, int | None] = field(default_factory=dict)
    """Exit codes of ended ranks of other launchers; None if their launcher ended without a message."""
    aborted: tuple[int, int] | None = None
    """The rank that first called MPI_Abort, and its code; its library waits until it is killed."""
    finalized: set[int] = field(default_factory=set)
    """Ranks that may exit: their library has finalized, or hocket has started it."""
    refused_spawn: int | None = None
    """The first rank that called MPI_Comm_spawn, which is not supported."""
    _pending: dict[int, bytes] = field(default_factory=dict)
    _in_barrier: set[int] = field(default_factory=set)
    # Ranks that have sent a part of a spawn command of several lines: its totspawns and spawnssofar.
    _in_spawn: dict[int, dict[bytes, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hosts is not None:
            self.values["PMI_process_mapping"] = f"(vector,(0,{self.hosts[0]},{self.hosts[1]}))"

    @property
    def ranks_in_barrier(self) -> list[int]:
        return sorted(self._in_barrier)

    def begin(self, rank: int) -> None:
        """Note that a rank's MPI starts to initialize."""
        self.begun.add(rank)
        self.begun_s = self.begun_s or time.monotonic()

    def answer(self, rank: int, line: str) -> str:
        """Return the answer to one line of a rank; "" if the answer is sent later."""
        # The value of a put may contain spaces and "=": it is the whole rest of the line.
        command, _, value = line.partition(" value=")
        words = dict(word.split("=", 1) for word in command.split() if "=" in word)
        match words.get("cmd"):
            case "initack":
                return f"cmd=initack rc=0\ncmd=set size={self.size}\ncmd=set rank={rank}\ncmd=set debug=0\n"
            case "init":
                self.begin(rank)
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
            case "get_maxes":
                return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096\n"
            case "get_appnum":
                return "cmd=appnum appnum=0\n"
            case "get_universe_size":
                return f"cmd=universe_size size={self.size}\n"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self.name}\n"
            case "put" if "key" in words:
                if len(self.values) >= _MOST_VALUES * self.size and words["key"] not in self.values:
                    return "cmd=put_result rc=-1 msg=too_many_keys\n"
                self.values[words["key"]] = value
                return "cmd=put_result rc=0 msg=success\n"
            case "get" if words.get("key") in self.values:
                return f"cmd=get_result rc=0 msg=success value={self.values[words['key']]}\n"
            case "get":
                return f"cmd=get_result rc=-1 msg=key_{words.get('key')}_not_found value=unknown\n"
            case "barrier_in":
                self._in_barrier.add(rank)
                return ""
            case "abort":
                return ""
            case "publish_name" | "unpublish_name" | "lookup_name" as known:
                return f"cmd={known.removesuffix('_name')}_result rc=-1 msg=not_supported\n"
            case "finalize":
                self.finalized.add(rank)
                return "cmd=finalize_ack rc=0\n"
            case other:
                return f"cmd={other} rc=-1 msg=unknown_command\n"

    def take_in(self, rank: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Handle data from a rank; yield (receiver, answer) for its complete lines.

        Raises:
            PmiError: a line is too long.
        """
        *lines, pending = (self._pending.get(rank, b"") + data).split(b"\n")
        if max(map(len, [*lines, pending])) > _MOST_LINE:
            raise PmiError(f"a line has more than {_MOST_LINE} bytes")
        self._pending[rank] = pending
        for line in lines:
            if rank in self._in_spawn or line.startswith(b"mcmd="):
                if (spawned := self._take_in_spawn(rank, line)) is not None:
                    yield rank, spawned
                continue
            if line == OWN:
                self.finalized.add(rank)
                continue
            if (end := ENDED.fullmatch(line)) is not None:
                self.ended[rank] = int(end[1])
                continue
            if self.aborted is None and (abort := ABORT.match(line)):
                self.aborted = rank, int(abort[1])
            answer = self.answer(rank, line.decode(errors="replace"))
            if answer:
                yield rank, answer.encode()
            elif len(self._in_barrier) == self.size:
                self._in_barrier.clear()
                self.has_started = True
                for each in range(self.size):
                    yield each, b"cmd=barrier_out rc=0\n"

    def _take_in_spawn(self, rank: int, line: bytes) -> bytes | None:
        """Handle a line of MPI_Comm_spawn or MPI_Comm_spawn_multiple; return the answer after the last line."""
        spawns = self._in_spawn.setdefault(rank, {})
        if (count := _SPAWNS.fullmatch(line)) is not None:
            spawns[count[1]] = int(count[2])
        if line != b"endcmd":
            return None
        del self._in_spawn[rank]
        if spawns.get(b"spawnssofar", 1) < spawns.get(b"totspawns", 1):
            return None
        if self.refused_spawn is None:
            self.refused_spawn = rank
        return b"cmd=spawn_result rc=-1 msg=not_supported\n"

    def leave(self, rank: int) -> None:
        """Note that a rank's connection has ended."""
        self._pending.pop(rank, None)
        self._in_spawn.pop(rank, None)
        self._in_barrier.discard(rank)


def remains_of(name: str) -> str:
    """Return a glob pattern of the files that MPICH creates in shared memory.

    Args:
        name: name of the job, as sent to MPICH.
    """
    name_hash = 2166136261  # MPICH names its files by the FNV-1a hash
    for byte in name.encode():
        name_hash = (name_hash ^ byte) * 16777619 & 0xFFFFFFFF
    return f"/dev/shm/mpich_shm_{name_hash:x}_*"


def remove_remains(name: str) -> None:
    """Remove the shared memory of ranks that died during MPI_Init; other ranks have removed theirs."""
    pattern = Path(remains_of(name))
    for path in pattern.parent.glob(pattern.name):
        path.unlink(missing_ok=True)


def start_local_server(size: int) -> str:
    """Start a server process for the ranks of this host; return its name for `connect_locally`."""
    name = f"hocket-pmi-{os.urandom(16).hex()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")  # abstract: no file remains after a crash
        listener.listen(size)
        start_pmi_server(listener.fileno(), size, os.getpid())
    return name


def connect_locally(name: str, rank: int) -> socket.socket:
    """Return a connection to a server of this host, for a rank's MPI library.

    Raises:
        OSError: this user has no such server.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(f"\0{name}")
        if user_of(connection) != os.geteuid():
            raise ConnectionError("the PMI server belongs to another user")
        connection.sendall(f"cmd=initack pmiid={rank}\n".encode())
        answer = b""
        while answer.count(b"\n") < 4:
            part = connection.recv(4096)
            if not part:
                raise ConnectionError("the PMI server refused this rank")
            answer += part
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket, from the kernel (SO_PEERCRED)."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


@dataclass(eq=False)
class _Peer:
    connection: socket.socket
    rank: int | None = None  # until it has sent initack
    first_line: bytes = b""


class LocalServer:
    """Serves the ranks of one host until all connected ranks have left.

    Args:
        listener: listening socket.
        size: number of ranks of the job.
        parent: pidfd of the process that started this server; after its end, the server does not wait for new ranks.
    """

    def __init__(self, listener: socket.socket, size: int, parent: int) -> None:
        self._server = PmiServer(size)
        self._listener = listener
        self._parent = parent
        self._ranks: dict[int, _Peer] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._parent, selectors.EVENT_READ)
        is_over = False
        while self._ranks or not is_over:
            for key, _ in self._selector.select():
                if key.fd == self._parent:
                    self._selector.unregister(self._parent)
                    is_over = True
                elif key.fileobj is self._listener:
                    self._accept()
                elif not self._serve_peer(key.data):
                    is_over |= self._ranks.get(key.data.rank) is key.data
                    self._close(key.data)
        remove_remains(self._server.name)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if user_of(connection) != os.geteuid():
            connection.close()
            return
        connection.settimeout(_TIMEOUT_S)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _serve_peer(self, peer: _Peer) -> bool:
        """Answer the data of a rank; return False if it has disconnected, or is not a rank."""
        try:
            data = peer.connection.recv(1 << 16)
            if data and peer.rank is None:
                data = self._greet(peer, data)
                if peer.rank is None:
                    return len(peer.first_line) <= _MOST_LINE
                if not data:
                    return True
            if not data or peer.rank is None:
                return False
            for receiver, answer in self._server.take_in(peer.rank, data):
                if receiver in self._ranks:
                    self._ranks[receiver].connection.sendall(answer)
        except (OSError, PmiError):
            return False
        return True

    def _greet(self, peer: _Peer, data: bytes) -> bytes:
        """Read the first line, which has the rank; return the data after it."""
        line, end, rest = (peer.first_line + data).partition(b"\n")
        peer.first_line = line
        if not end:
            return b""
        number = line.removeprefix(b"cmd=initack pmiid=")
        if not (line != number and number.isdigit() and len(number) < 10) or int(number) >= self._server.size:
            raise PmiError("the client is not a rank of this job")
        if int(number) in self._ranks:
            raise PmiError(f"rank {int(number)} is already connected")
        peer.rank = int(number)
        self._ranks[peer.rank] = peer
        peer.connection.sendall(self._server.answer(peer.rank, "cmd=initack").encode())
        return rest

    def _close(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.rank is not None and self._ranks.get(peer.rank) is peer:
            del self._ranks[peer.rank]
            self._server.leave(peer.rank)


def main() -> None:
    fd, size, parent = map(int, sys.argv[1:])
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    with socket.socket(fileno=fd) as listener:
        LocalServer(listener, size, descriptor).serve()


if __name__ == "__main__":
    main()
