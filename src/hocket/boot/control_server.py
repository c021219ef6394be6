"""The server of a job's control connections: it passes messages other than data between ranks on several hosts.

It is a separate program because it must outlive every rank, also rank 0. It reads its task (`ServerTask`) from standard
input, and exits when all ranks have left.

Strangers can connect, too. Their data is not parsed (`hocket.boot.sealed`), and their resources are bounded: the number
of unauthenticated connections is limited, each may last a few seconds, and the oldest is closed first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any

from hocket.boot.helper import ServerTask
from hocket.boot.job_state import JobState
from hocket.boot.messages import FROM_RANK, MOST_TEXT, decode, encode
from hocket.boot.pmi import PmiServer
from hocket.boot.sealed import ProtocolError, Role, ServerEnd
from hocket.boot.secret import Secret
from hocket.boot.sockets import keep_alive

_PROOF_S = 10.0  # time limit for the authentication of a connection
_LEAST_UNPROVEN = 256  # that may be open at once; large jobs allow more
_ACCEPTED_AT_ONCE = 64  # before authenticated connections are served again
_WITHOUT_DESCRIPTORS_S = 0.1
_MOST_UNSENT = 64 << 20  # bytes for a rank that does not read
_UNREAD_S = 5.0
_MOST_UNREAD = 64  # reads of a connection that is refused


class _Connection:
    """One connection, of a rank or a stranger."""

    def __init__(self, connection: socket.socket, end: ServerEnd, host: str) -> None:
        self.socket = connection
        self.end = end
        self.host = host
        self.since_s = time.monotonic()
        self.sent_s = self.since_s  # time of the last successful send, or of an empty queue
        self.is_welcome = False  # it sent a valid hello
        self.is_closed = False
        self.events = selectors.EVENT_READ

    def send(self, message: bytes) -> None:
        """Queue a message."""
        if not self.end.outgoing:
            self.sent_s = time.monotonic()
        self.end.send(message)

    def flush(self) -> None:
        """Send as much as the socket accepts; raise OSError if the connection is broken."""
        outgoing = self.end.outgoing
        while outgoing:
            try:
                sent = self.socket.send(outgoing)
            except BlockingIOError:
                break
            del outgoing[:sent]
            self.sent_s = time.monotonic()
        if outgoing and (len(outgoing) > _MOST_UNSENT or time.monotonic() - self.sent_s > _UNREAD_S):
            raise TimeoutError("it does not read")


class ControlServer:
    """Serves one job.

    Args:
        task: the job to serve.
        listeners: listening sockets.
        owner_fd: descriptor of a pipe from the process that started this server; if the pipe is closed before rank 0
            has joined, the server stops waiting for ranks.
        hosts: number of hosts and number of ranks on each, for MPI; None if unknown.
    """

    def __init__(
        self,
        task: ServerTask,
        listeners: list[socket.socket],
        owner_fd: int,
        hosts: tuple[int, int] | None = None,
    ) -> None:
        self._task = task
        self._secret = Secret(bytes.fromhex(task.secret), "")
        self._tls = _tls_server(task.tls)
        self._most_unproven = max(_LEAST_UNPROVEN, 2 * task.size)
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._unproven: dict[_Connection, None] = {}  # the oldest first
        self._num_unproven: Counter[str] = Counter()  # by host
        self._ranks: dict[int, _Connection] = {}
        self.pmi = PmiServer(task.size, hosts)
        self._pmi_connections: dict[int, _Connection] = {}
        self._job = JobState(task.size, task.timeout_s, self._send_to_rank)
        self._listens_again_s: float | None = None  # when descriptors may be available again
        self._owner_fd = owner_fd
        self._is_of_mpi = hosts is not None
        self.has_sent_bye = threading.Event()

    def serve(self) -> None:
        """Serve until every rank has left, or until the deadline for joining."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._owner_fd, selectors.EVENT_READ)
        while not self._job.is_over or self._pmi_connections:  # MPI may be finalized after hocket
            # Authenticated connections first, so that strangers cannot delay them.
            ready = sorted(self._selector.select(self._next_timeout_s()), key=lambda event: self._order(event[0]))
            for key, events in ready:
                if key.fd == self._owner_fd:
                    self._send_bye()
                    self._selector.unregister(self._owner_fd)
                    self._job.note_owner_end()
                elif key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._handle(key.data, events)
            self._job.handle_timeouts()
            self._handle_timeouts()
            has_all_of_mpi = self._is_of_mpi and len(self.pmi.begun) == self._task.size
            if (self._job.is_closed or has_all_of_mpi) and self._listeners:
                self._close_listeners()
        for connection in list(self._ranks.values()):  # the last messages of a job that failed to start
            with contextlib.suppress(OSError):
                connection.socket.settimeout(_UNREAD_S)
                connection.socket.sendall(connection.end.outgoing)

    def close(self) -> None:
        """Close listeners and selector, for a process that continues."""
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def _order(self, key: selectors.SelectorKey) -> int:
        return 2 if key.data is None else 0 if key.data.end.is_proven else 1

    def _next_timeout_s(self) -> float | None:
        now = time.monotonic()
        ends = [each.since_s + _PROOF_S for each in list(self._unproven)[:1]]
        ends += [each.sent_s + _UNREAD_S for each in self._ranks.values() if each.end.outgoing]
        if self._listens_again_s is not None:
            ends.append(self._listens_again_s)
        waits = [max(0.0, each - now) for each in ends]
        of_job = self._job.next_timeout_s()
        return min([*waits, *([] if of_job is None else [of_job])], default=None)

    def _handle_timeouts(self) -> None:
        now = time.monotonic()
        for connection in list(self._unproven):
            if now - connection.since_s < _PROOF_S:
                break
            self._close(connection)
        for connection in [each for each in self._ranks.values() if each.end.outgoing]:
            self._flush(connection)
        if self._listens_again_s is not None and now >= self._listens_again_s:
            self._listens_again_s = None
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)

    def _close_listeners(self) -> None:
        """Release the port: this server may outlive the job, for MPI or for a rank that still computes."""
        for listener in self._listeners:
            if self._listens_again_s is None:
                self._selector.unregister(listener)
            listener.close()
        self._listeners, self._listens_again_s = [], None
        for connection in list(self._unproven):
            self._close(connection)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._listens_again_s is not None:
                return
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._make_room()
                return  # other errors: the client has disconnected
            try:
                host = str(connection.getpeername()[0])
                keep_alive(connection)
                connection.setblocking(False)
                tls = None if self._tls is None else self._tls.begin()
                end = ServerEnd(self._secret, self._task.job, tls, is_complete=self._job.is_complete)
                new = _Connection(connection, end, host)
                self._selector.register(connection, selectors.EVENT_READ, new)
            except Exception:  # it has disconnected; any failure must not stop the server
                connection.close()
                continue
            self._unproven[new] = None
            self._num_unproven[host] += 1
            if len(self._unproven) > self._most_unproven:
                self._close(self._connection_to_drop())
            self._flush(new)

    def _connection_to_drop(self) -> _Connection:
        """Return the oldest unauthenticated connection of the host that has most of them."""
        most = max(self._num_unproven, key=lambda host: self._num_unproven[host])
        return next(each for each in self._unproven if each.host == most)

    def _forget_unproven(self, connection: _Connection) -> None:
        if connection in self._unproven:
            del self._unproven[connection]
            self._num_unproven[connection.host] -= 1
            if not self._num_unproven[connection.host]:
                del self._num_unproven[connection.host]

    def _make_room(self) -> None:
        """Close an unauthenticated connection, or wait until descriptors are available."""
        if self._unproven:
            self._close(self._connection_to_drop())
            return
        self._listens_again_s = time.monotonic() + _WITHOUT_DESCRIPTORS_S
        for listener in self._listeners:
            self._selector.unregister(listener)

    def _handle(self, connection: _Connection, events: int) -> None:
        """Read from or write to a connection; any error closes only this connection."""
        if connection.is_closed:
            return
        if events & selectors.EVENT_READ:
            try:
                data = connection.socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("it was closed")
                for message in connection.end.take_in(data):
                    self._take_in(connection, message)
                    if connection.is_closed:
                        return
                if connection.end.is_proven:
                    self._forget_unproven(connection)
            except BlockingIOError:
                return
            except OSError:  # it has disconnected
                self._close(connection)
                return
            except Exception as error:  # an invalid message; even a bug of ours closes only this connection
                self._refuse(connection, str(error) if isinstance(error, ProtocolError) else repr(error))
                self._close(connection)
                return
        self._flush(connection)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        """Send a rank the reason why its connection is closed; send nothing to a stranger."""
        if connection.end.is_proven and connection.end.role == Role.CONTROL:
            with contextlib.suppress(OSError):
                connection.send(encode("refused", reason[:MOST_TEXT]))
                connection.flush()
                connection.socket.shutdown(socket.SHUT_WR)
                for _ in range(_MOST_UNREAD):  # closing a socket with unread data would discard what was sent
                    if not connection.socket.recv(1 << 16):
                        break

    def _take_in(self, connection: _Connection, message: bytes) -> None:
        rank = connection.end.rank
        if rank >= self._task.size:
            contradiction = (
                f"rank {rank} is out of range: this job has {self._task.size} ranks, by rank 0; the launchers of "
                "all hosts need the same -n and --nnodes"
            )
            self._job.refuse(contradiction)
            raise ProtocolError(contradiction)
        if connection.end.role == Role.PMI:
            self._take_in_pmi(connection, message)
            return
        kind, content = decode(message, FROM_RANK, self._task.size)
        if connection.is_welcome:
            if kind == "hello":
                raise ProtocolError("a rank sent hello twice")
            self._job.take_in(rank, kind, content)
            return
        if kind != "hello":
            raise ProtocolError("a rank must send hello first")
        addresses = _address(connection.socket.getpeername()), _address(connection.socket.getsockname())
        before = self._ranks.setdefault(rank, connection)
        reason = self._job.welcome(rank, content, *addresses)
        if reason is None:
            connection.is_welcome = True
            return
        if before is connection:
            del self._ranks[rank]
        connection.send(encode("refused", reason))
        self._flush(connection)

    def _take_in_pmi(self, connection: _Connection, message: bytes) -> None:
        """Pass a line of an MPI library to the PMI server, and send its answers to their receivers."""
        rank = connection.end.rank
        if self._pmi_connections.setdefault(rank, connection) is not connection:
            raise ProtocolError(f"rank {rank} already has a connection for its MPI library")
        for receiver, answer in self.pmi.take_in(rank, message):
            self._send_to_library(receiver, answer)
        if self.pmi.aborted is not None:  # for the relays of the other libraries
            for receiver in [each for each in self._pmi_connections if each != rank]:
                self._send_to_library(receiver, b"cmd=abort exitcode=%d\n" % self.pmi.aborted[1])

    def _report_end(self, rank: int) -> None:
        """Notify the launchers of a rank that has failed, or whose exit code is unknown."""
        code = self.pmi.ended.get(rank)
        if code == 0 or not self._is_of_mpi:
            return
        for receiver in [each for each in self._pmi_connections if each != rank]:
            self._send_to_library(receiver, b"cmd=hocket_lost rank=%d code=%d\n" % (rank, -1 if code is None else code))

    def _send_bye(self) -> None:
        """Send the exit code of this launcher's ranks, if the owner has written it, to the other launchers."""
        code = os.read(self._owner_fd, 16)
        if code:
            for receiver in list(self._pmi_connections):
                self._send_to_library(receiver, b"cmd=hocket_bye code=%s\n" % code)
            self.has_sent_bye.set()

    def _send_to_library(self, rank: int, line: bytes) -> None:
        other = self._pmi_connections.get(rank)
        if other is not None:
            other.send(line)
            self._flush(other)

    def _send_to_rank(self, rank: int, kind: str, content: object) -> None:
        connection = self._ranks.get(rank)
        if connection is not None and not connection.is_closed:
            connection.send(encode(kind, content))
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send what the socket accepts now; the rest is sent when it is writable."""
        if connection.is_closed:
            return
        try:
            connection.flush()
        except OSError:  # it does not read, or has died: the next read closes it
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            connection.end.outgoing.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.end.outgoing else 0)
        if events != connection.events:
            connection.events = events
            self._selector.modify(connection.socket, events, connection)

    def _close(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        connection.is_closed = True
        self._forget_unproven(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        rank = connection.end.rank
        if self._pmi_connections.get(rank) is connection:
            del self._pmi_connections[rank]
            self.pmi.leave(rank)
            if rank in self.pmi.begun:
                self.pmi.ended.setdefault(rank, None)
                self._report_end(rank)
        if self._ranks.get(rank) is connection:
            del self._ranks[rank]
            if connection.is_welcome:
                self._job.note_end(rank)


def _tls_server(paths: list[str | None] | None) -> Any:
    if paths is None:
        return None
    from hocket.boot.tls import TlsFiles  # the module is large, and TLS is rarely enabled

    certificate, key = paths
    return TlsFiles(str(certificate), key).server_side()


def _address(name: tuple[Any, ...]) -> str:
    return str(name[0]).removeprefix("::ffff:")


def main() -> None:
    task = ServerTask(**json.loads(sys.stdin.readline()))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ControlServer(task, [socket.socket(fileno=fd) for fd in task.fds], sys.stdin.fileno()).serve()


if __name__ == "__main__":
    main()
