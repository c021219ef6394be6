"""A helper beside a rank that hands the lines of its MPI library on to the server of the control connections.

It reads from its standard input where that is, and ends when either side has gone.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import sys

from hocket.boot.connecting import Place, connect_once
from hocket.boot.helper import RelayTask
from hocket.boot.pmi import remove_remains
from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import Secret
from hocket.boot.sockets import Interface

_NAME = re.compile(rb"cmd=my_kvsname kvsname=(hocket_[0-9a-f]{16})\n")
_PIECE = 1 << 15


def relay(task: RelayTask, local: socket.socket) -> None:
    """Hand on what comes from either side, until one has gone."""
    place = Place(Secret(bytes.fromhex(task.secret), ""), task.job, task.size, task.rank, Role.PMI, task.tls)
    connection, end = connect_once(Interface(task.family, tuple(task.place)), task.port, place)
    name = b""
    with connection, selectors.DefaultSelector() as selector:
        for each in (local, connection):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is local:
                    data = local.recv(_PIECE)
                    if not data:
                        remove_remains(name.decode()) if name else None
                        return
                    end.send(data)
                else:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    for message in end.take_in(data):
                        found = _NAME.search(message)
                        name = found[1] if found else name
                        local.sendall(message)
                _flush(connection, end)


def _flush(connection: socket.socket, end: RankEnd) -> None:
    connection.sendall(end.outgoing)
    end.outgoing.clear()


def main() -> None:
    task = RelayTask(**json.loads(sys.stdin.readline()))
    # The rank's library sees the end of its socket, and fails.
    with socket.socket(fileno=task.fds[0]) as local, contextlib.suppress(OSError, ProtocolError):
        relay(task, local)


if __name__ == "__main__":
    main()
