"""A PMI-1 server: what MPICH needs of a process manager, so that it starts under any launcher.

Run as a program, ``python pmi.py ADDRESS SIZE``: prints its port, then serves SIZE ranks over TCP until all that came
have gone, or its parent has died before any came. It is a process of its own because it has to outlive every rank's
MPI_Finalize, and because a thread of a rank would stand still while that rank starts MPI.

The protocol is lines of ``key=value`` words (PMI-1, in MPICH's src/pmi): a rank says which one it is (initack), puts
what others need to reach it, enters a barrier and gets what they put.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class _Rank:
    connection: socket.socket
    pending: bytes = b""
    in_barrier: bool = False


@dataclass
class PmiServer:
    """The state of one job: what its ranks put, and who of them waits in the barrier."""

    size: int
    # MPICH names its shared memory after it: a name that an earlier job used would find that job's remains.
    name: str = field(default_factory=lambda: f"hocket_{secrets.token_hex(8)}")
    values: dict[str, str] = field(default_factory=dict)
    ranks: list[_Rank] = field(default_factory=list)

    def remove_remains(self) -> None:
        """Remove the shared memory of ranks that died while MPI was starting; all others have removed it themselves."""
        name_hash = 2166136261  # FNV-1a of the job's name, by which MPICH calls it
        for byte in self.name.encode():
            name_hash = (name_hash ^ byte) * 16777619 & 0xFFFFFFFF
        for path in Path("/dev/shm").glob(f"mpich_shm_{name_hash:x}_*"):
            path.unlink(missing_ok=True)

    def answer(self, rank: _Rank, line: str) -> str:
        """Return what to send for one line of a rank; nothing where the answer comes later."""
        # The value of a put may hold spaces and further "=": it is the rest of the line, and no word of the command.
        command, _, value = line.partition(" value=")
        words = dict(word.split("=", 1) for word in command.split() if "=" in word)
        match words.get("cmd"):
            case "initack":
                number = words.get("pmiid", "0")
                return f"cmd=initack rc=0\ncmd=set size={self.size}\ncmd=set rank={number}\ncmd=set debug=0\n"
            case "init":
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
                self.values[words["key"]] = value
                return "cmd=put_result rc=0 msg=success\n"
            case "get" if words.get("key") in self.values:
                return f"cmd=get_result rc=0 msg=success value={self.values[words['key']]}\n"
            case "get":
                return f"cmd=get_result rc=-1 msg=key_{words.get('key')}_not_found value=unknown\n"
            case "barrier_in":
                rank.in_barrier = True
                return ""
            case "finalize":
                return "cmd=finalize_ack rc=0\n"
            case other:
                return f"cmd={other} rc=-1 msg=unknown_command\n"

    def receive(self, rank: _Rank, data: bytes) -> None:
        """Take in what a rank sent and answer all of its complete lines."""
        *lines, rank.pending = (rank.pending + data).split(b"\n")
        for line in lines:
            answer = self.answer(rank, line.decode(errors="replace"))
            if answer:
                rank.connection.sendall(answer.encode())
        if len(self.ranks) == self.size and all(each.in_barrier for each in self.ranks):
            for each in self.ranks:
                each.in_barrier = False
                with contextlib.suppress(OSError):  # one that has died is noticed when it is read from
                    each.connection.sendall(b"cmd=barrier_out rc=0\n")


def serve(listener: socket.socket, size: int, parent: int) -> None:
    """Serve until every rank that came has gone.

    Args:
        listener: where ranks connect.
        size: ranks of the job.
        parent: descriptor of the process that wants this server; once it has ended, nobody new is waited for.
    """
    server = PmiServer(size)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(parent, selectors.EVENT_READ)
        is_over = False
        while server.ranks or not is_over:
            for key, _ in selector.select():
                if key.fd == parent:
                    selector.unregister(parent)
                    is_over = True
                elif key.fileobj is listener:
                    rank = _Rank(listener.accept()[0])
                    _keep_alive(rank.connection)
                    server.ranks.append(rank)
                    selector.register(rank.connection, selectors.EVENT_READ, rank)
                elif not _serve_rank(server, key.data):
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
                    server.ranks.remove(key.data)
                    is_over = True
    server.remove_remains()


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice when the rank's host is gone: no end of the connection comes then."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _serve_rank(server: PmiServer, rank: _Rank) -> bool:
    """Answer what a rank sent; False when it has gone."""
    try:
        data = rank.connection.recv(65536)
        if data:
            server.receive(rank, data)
    except OSError:
        return False
    return bool(data)


def main() -> None:
    host, size = sys.argv[1], int(sys.argv[2])
    parent = os.pidfd_open(os.getppid())
    with socket.create_server((host, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        sys.stdout.close()
        serve(listener, size, parent)


if __name__ == "__main__":
    main()
