"""A connection before its first message: greeting, and what follows it between two hocket processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from distributed.comm.core import CommClosedError

from hocket.dask.greeting import KEY, hear, own_word, tell, word_in
from hocket.dask.local_socket import LocalSocket, Moved
from hocket.dask.moving import OpenConnection, move_as_connector, move_as_listener
from hocket.dask.raw_socket import RawSocket


class CommOpening:
    """Opens one connection: `tell`, then `hear`.

    Args:
        sock: connected.
        timeout_s: the peer must answer within so many seconds.
        local_socket: of a listener, if it has one.
        is_listener: whether this is the end that was connected to.
    """

    def __init__(
        self, sock: RawSocket, timeout_s: float, local_socket: LocalSocket | None, *, is_listener: bool
    ) -> None:
        self._sock, self._timeout_s, self._is_listener = sock, timeout_s, is_listener
        self._local_socket = local_socket
        self._token = ""
        self._moving: asyncio.Future[Moved] | None = None
        if local_socket is not None:
            self._token, self._moving = local_socket.expect()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._sock.is_closed

    async def tell(self, greeting: dict[str, Any]) -> int:
        """Send the greeting, with the word of this process; return its bytes."""
        async with self._in_time():
            return await tell(self._sock, greeting | {KEY: self._word()})

    async def hear(self) -> tuple[dict[str, Any], OpenConnection | None]:
        """Return the peer's greeting, and the connection; None: the peer speaks distributed's protocol only.

        Raises:
            FatalCommClosedError: the peer speaks another version of hocket's protocol.
            CommClosedError: the peer has closed the connection, does not follow the protocol, or does not answer.
        """
        try:
            async with self._in_time():
                greeting = await hear(self._sock)
                word = word_in(greeting)
                greeting.pop(KEY, None)
                if word is None:
                    return greeting, None
                if self._is_listener:
                    return greeting, await move_as_listener(self._sock, self._moving)
                return greeting, await move_as_connector(self._sock, word)
        finally:
            self._forget()

    def detach(self) -> Any:
        """Return the socket, which now belongs to the caller."""
        return self._sock.detach()

    def close(self) -> None:
        """Close the connection."""
        self._forget()
        self._sock.close()

    def abandon(self) -> None:
        """Close the connection, from any thread."""
        self._sock.abandon()

    def _word(self) -> dict[str, Any]:
        name = "" if self._local_socket is None else self._local_socket.name
        return own_word(name, self._token).as_dict()

    def _forget(self) -> None:
        if self._local_socket is not None:
            self._local_socket.forget(self._token)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise CommClosedError(f"the peer has not answered within {self._timeout_s:g} s") from None
