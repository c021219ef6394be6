"""A connection between the agents of two hosts: both have proven that they know the user's secret."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, BinaryIO

from hocket.boot.sealed import End, ProtocolError

PURPOSE = "hocket observe"
"""Name of the job in the protocol of control connections."""
VERSION = 3
"""Of the messages between agents. Raise it when their meaning changes: an agent of another version is refused."""
CHUNK_NBYTES = 512 << 10
_READ_NBYTES = 1 << 20


class SealedStream:
    """Sends and receives messages: JSON objects with one key, or pieces of a file.

    Args:
        connection: closed by `close`.
        end: this end's protocol, after authentication.

    Attributes:
        asked_s: when the other side was last asked what it does, by `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, end: End) -> None:
        self._socket = connection
        self._end = end
        self._received: deque[bytes] = deque()
        self.asked_s = 0.0

    def send(self, message: bytes, timeout: float) -> None:
        """Send a message.

        Raises:
            OSError: the connection is broken, or the other side does not read within `timeout` seconds.
        """
        self._end.send(message)
        self._socket.settimeout(timeout)
        self._socket.sendall(self._end.outgoing)
        self._end.outgoing.clear()

    def send_object(self, kind: str, content: object, timeout: float) -> None:
        """Send a JSON object with one key."""
        self.send(json.dumps({kind: content}).encode(), timeout)

    def send_content(self, file: BinaryIO, nbytes: int, timeout: float) -> None:
        """Send what a file has from its present position on, in pieces.

        Raises:
            OSError: the connection is broken, the other side does not read a piece within `timeout` seconds, or the
                file is shorter.
        """
        while nbytes > 0:
            piece = file.read(min(CHUNK_NBYTES, nbytes))
            if not piece:
                raise OSError("a file became shorter while it was sent")
            self.send(piece, timeout)
            nbytes -= len(piece)

    def receive_content(self, nbytes: int, timeout: float) -> Iterator[bytes]:
        """Yield the pieces of what `send_content` has sent.

        Raises:
            OSError: the connection is broken, or the next piece did not come within `timeout` seconds.
            ProtocolError: the pieces have another size together.
        """
        while nbytes > 0:
            piece = self.receive(timeout)
            if not 0 < len(piece) <= nbytes:
                raise ProtocolError("a content has another size than was announced")
            nbytes -= len(piece)
            yield piece

    def receive(self, timeout: float) -> bytes:
        """Return the next message.

        Raises:
            OSError: the connection is broken, or no whole message came within `timeout` seconds.
            ProtocolError: the other side sent something else.
        """
        deadline_s = monotonic() + timeout
        while not self._received:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no message within {timeout:g} s")
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_NBYTES)
            if not data:
                raise ConnectionError("the other side has closed the connection")
            self._received.extend(self._end.take_in(data))
        return self._received.popleft()

    def receive_object(self, timeout: float) -> tuple[str, Any]:
        """Return the key and the content of the next message."""
        try:
            content = json.loads(self.receive(timeout))
        except (ValueError, RecursionError):
            raise ProtocolError("a message is not JSON") from None
        if not isinstance(content, dict) or len(content) != 1:
            raise ProtocolError("a message must be a JSON object with one key")
        [(kind, value)] = content.items()
        return kind, value

    def shut_down(self) -> None:
        """End the connection; another thread that sends or receives gets an error. It closes it."""
        with suppress(OSError):  # it is broken already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
