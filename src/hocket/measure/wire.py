"""Messages between the coordinator and the ranks of its jobs: one JSON object a line over a unix socket."""

from __future__ import annotations

import json
import socket
from typing import Any

ADDRESS_VARIABLE = "HOCKET_MEASURE_ADDRESS"  # path of a unix socket
JOB_VARIABLE = "HOCKET_MEASURE_JOB"
Message = dict[str, Any]


class Line:
    """A socket that carries whole messages and buffers a partial one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._pending = b""

    def fileno(self) -> int:
        """Return the file descriptor, for select."""
        return self.connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """Read once, blocking until data arrives; return None if no message is complete yet.

        Raises:
            EOFError: The peer closed the connection.
        """
        if b"\n" not in self._pending:
            try:
                data = self.connection.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the peer closed the connection")
            self._pending += data
        line, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        message: Message = json.loads(line)
        return message
