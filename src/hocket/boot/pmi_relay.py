"""Relay the lines of an MPI library to the server of the control connections.

A separate program beside each rank if the launcher is not `hocket run`. It reads the server's address from standard
input, and exits when either side has closed its connection.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import sys
from collections.abc import Callable

from hocket.boot.connecting import Place, connect_once
from hocket.boot.helper import RelayTask
from hocket.boot.mpi_variables import FAILED, OWN
from hocket.boot.pmi import ABORT, remains_of, remove_remains
from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import Secret
from hocket.boot.sockets import Interface

_NAME = re.compile(rb"cmd=my_kvsname kvsname=(hocket_[0-9a-f]{16})\n")
_LOST = re.compile(rb"cmd=hocket_lost rank=([0-9]{1,9}) code=(-?[0-9]{1,5})\n")
_BYE = re.compile(rb"cmd=hocket_bye code=([0-9]{1,5})\n")
_PIECE = 1 << 15
UNFINALIZED = 256
"""Sent instead of exit code 0 for a rank that did not finalize MPI: other ranks may wait for it."""
_FINALIZE, _FINALIZED = b"cmd=finalize\n", b"cmd=finalize_ack rc=0\n"


class Passage:
    """The relay of one library's lines.

    It answers the library's last message, finalize, itself: the server may have ended before.

    Args:
        local: socket of the library.
        connection, end: connection to the server.
        on_remains: called with the pattern of the files that the library creates in shared memory.
    """

    def __init__(
        self,
        local: socket.socket,
        connection: socket.socket,
        end: RankEnd,
        on_remains: Callable[[str], None] = lambda pattern: None,
    ) -> None:
        self._local = local
        self._connection = connection
        self._end = end
        self._on_remains = on_remains
        self._is_served = True
        self._has_asked = False  # and has not received the answer
        self._name = b""
        self.abort_code: int | None = None
        """Code of the first MPI_Abort of any rank."""
        self.is_of_library = False
        """Whether this library's rank called it."""
        self.lost: str | None = None
        """Why the local ranks must stop waiting for others: how a rank of another host ended."""
        self._has_bye = False
        self.has_finalized = False
        """Whether the rank may exit: its library has finalized, or hocket has started it."""
        self.failed_code: int | None = None
        """Exit code of the rank if its program has failed; its library will wait for the others."""

    def run(self) -> None:
        """Relay in both directions until the library disconnects, a rank calls MPI_Abort, or the server is lost.

        Raises:
            OSError, ProtocolError: a connection has broken.
        """
        with selectors.DefaultSelector() as selector:
            for each in (self._local, self._connection):
                selector.register(each, selectors.EVENT_READ)
            while self.abort_code is None:
                for key, _ in selector.select():
                    if key.fileobj is self._connection:
                        if not self._take_from_server():
                            if not self._has_bye:
                                self.lost = self.lost or "the launcher of host 0 has ended"
                            if self._has_asked:
                                raise ConnectionError("the server of this job's MPI has ended")
                            self._is_served = False
                            selector.unregister(self._connection)
                    elif not self._take_from_library():
                        return
                if self._is_served:
                    self._connection.sendall(self._end.outgoing)
                    self._end.outgoing.clear()

    def remove_remains(self) -> None:
        """Remove the library's files in shared memory, if it was killed during its start."""
        if self._name:
            remove_remains(self._name.decode())

    def _take_from_library(self) -> bool:
        data = self._local.recv(_PIECE)
        self._look_for_abort(data)
        self.is_of_library = self.abort_code is not None
        if (failed := FAILED.search(data)) is not None:
            self.failed_code = int(failed[1])
            data = FAILED.sub(b"", data)
            if not data:
                return True
        self.has_finalized |= data.startswith(OWN) or data.endswith(_FINALIZE)
        if data.endswith(_FINALIZE):
            data = data.removesuffix(_FINALIZE)
            self._local.sendall(_FINALIZED)
            if not data:
                return True
        if data and self._is_served:
            self._has_asked = True
            self._end.send(data)
            return True
        return False

    def _take_from_server(self) -> bool:
        data = self._connection.recv(1 << 16)
        for message in self._end.take_in(data):
            match = _NAME.search(message)
            if match:
                self._name = match[1]
                self._on_remains(remains_of(self._name.decode()))
            self._look_for_abort(message)
            if self._take_notice(message):
                continue
            if self.abort_code is None:
                self._has_asked = False
                self._local.sendall(message)
        return bool(data)

    def send_end(self, code: int) -> None:
        """Send the rank's exit code, or `UNFINALIZED`, to the server; the last message."""
        if self._is_served:
            self._end.send(b"cmd=hocket_ended code=%d\n" % code)
            self._connection.sendall(self._end.outgoing)
            self._end.outgoing.clear()

    def _take_notice(self, message: bytes) -> bool:
        """Handle a message of the server for the launcher; return False if it is for the library."""
        if (lost := _LOST.fullmatch(message)) is not None:
            code = int(lost[2])
            how = {-1: "its launcher has ended", UNFINALIZED: "without MPI_Finalize"}.get(code)
            how = how or (f"exit code {code}" if code >= 0 else f"signal {-code}")
            self.lost = self.lost or f"rank {int(lost[1])} of another host has ended ({how})"
            return True
        if (bye := _BYE.fullmatch(message)) is not None:
            self._has_bye = True
            if int(bye[1]) != 0:
                self.lost = self.lost or f"the ranks of host 0 have failed (exit code {int(bye[1])})"
            return True
        return False

    def _look_for_abort(self, data: bytes) -> None:
        match = ABORT.search(data)
        if match is not None:
            self.abort_code = int(match[1])


def relay(task: RelayTask, local: socket.socket) -> None:
    """Connect to the server and relay in both directions."""
    place = Place(Secret(bytes.fromhex(task.secret), ""), task.job, task.size, task.rank, Role.PMI, task.tls)
    connection, end = connect_once(Interface(task.family, tuple(task.place)), task.port, place)
    with connection:
        passage = Passage(local, connection, end)
        try:
            passage.run()
        finally:
            passage.remove_remains()


def main() -> None:
    task = RelayTask(**json.loads(sys.stdin.readline()))
    # On an error, the rank's library gets the end of its socket and fails.
    with socket.socket(fileno=task.fds[0]) as local, contextlib.suppress(OSError, ProtocolError):
        relay(task, local)


if __name__ == "__main__":
    main()
