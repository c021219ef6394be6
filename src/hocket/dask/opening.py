"""A connection before its first message: greeting, and what follows it between two hocket processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

from distributed.comm.core import CommClosedError

from hocket.dask.carriers import CarrierLibrary
from hocket.dask.greeting import KEY, hear, own_word, tell, word_in
from hocket.dask.local_socket import LocalSocket, Moved
from hocket.dask.moving import OpenConnection, move_as_connector, move_as_listener
from hocket.dask.raw_socket import RawSocket

_GREETINGS = 10
"""A greeting may take so many times as long as a connection: distributed does not limit it, since the loop of a process
may be held up by a task. What follows it takes no longer than a connection."""

_PROBE_S = 5.0
"""The first bytes over a library between hosts arrive within this time, or frames go over TCP."""


class CommOpening:
    """Opens one connection: `tell`, then `hear`.

    Args:
        sock: connected.
        timeout_s: of a new connection, in seconds.
        local_socket: of a listener, if it has one.
        libraries: those of this process that carry frames between hosts.
        is_listener: whether this is the end that was connected to.
        uses_devices: whether frames may be in device memory.
    """

    def __init__(
        self,
        sock: RawSocket,
        timeout_s: float,
        local_socket: LocalSocket | None,
        libraries: dict[str, CarrierLibrary],
        *,
        is_listener: bool,
        uses_devices: bool,
    ) -> None:
        self._sock, self._timeout_s, self._is_listener = sock, timeout_s, is_listener
        self._local_socket, self._libraries = local_socket, libraries
        self._uses_devices = uses_devices
        self._token, self._is_closed = "", False
        self._moved: RawSocket | None = None
        self._moving: asyncio.Future[Moved] | None = None
        if local_socket is not None:
            self._token, self._moving = local_socket.expect()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def tell(self, greeting: dict[str, Any]) -> int:
        """Send the greeting, with the word of this process; return its bytes."""
        async with self._in_time(_GREETINGS * self._timeout_s):
            return await tell(self._sock, greeting | {KEY: self._word()})

    async def hear(self) -> tuple[dict[str, Any], OpenConnection | None]:
        """Return the peer's greeting, and the connection; None: the peer speaks distributed's protocol only.

        Raises:
            FatalCommClosedError: the peer speaks another version of hocket's protocol.
            CommClosedError: the connection is closed, the peer does not follow the protocol, or it does not answer.
        """
        try:
            async with self._in_time(_GREETINGS * self._timeout_s):
                greeting = await hear(self._sock)
            word = word_in(greeting)
            greeting.pop(KEY, None)
            if word is None:
                return greeting, None
            probe_s = min(_PROBE_S, self._timeout_s / 2)
            async with self._in_time(self._timeout_s):
                if self._is_listener:
                    connection = await move_as_listener(
                        self._sock, word, self._libraries, self._moving, self._opened, self._uses_devices, probe_s
                    )
                else:
                    connection = await move_as_connector(
                        self._sock, word, self._libraries, self._opened, self._uses_devices, probe_s
                    )
        finally:
            self._forget()
        self._moved = None
        if self._is_closed:
            connection.sock.close()
            raise CommClosedError("the connection was closed on this end")
        return greeting, connection

    def detach(self) -> socket:
        """Return the socket, which now belongs to the caller."""
        return self._sock.detach()

    def abort(self) -> None:
        """Close the connection, from any thread."""
        if self._sock.abort_elsewhere(self.abort):
            return
        self._is_closed = True
        self._forget()
        self._sock.close()
        if self._moved is not None:
            self._moved.close()

    def _opened(self, sock: RawSocket) -> None:
        """Note the local socket over which the connection goes on."""
        self._moved = sock

    def _word(self) -> dict[str, Any]:
        name = "" if self._local_socket is None else self._local_socket.name
        carriers = {each: library.word for each, library in self._libraries.items()}
        return own_word(name, self._token, carriers).as_dict()

    def _forget(self) -> None:
        if self._local_socket is not None:
            self._local_socket.forget(self._token)
        if self._moving is None:
            return
        if not self._moving.done():
            self._moving.set_exception(CommClosedError("the connection was closed on this end"))
            self._moving.exception()  # nobody has to wait for it
        elif self._moving.exception() is None:
            self._moving.result().sock.close()  # unless a connection has it

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise CommClosedError(f"the peer has not answered within {seconds:g} s") from None
