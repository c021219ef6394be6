"""A socket before the first message: exact reads, which never take a byte that belongs to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from socket import MSG_NOSIGNAL, socket

from distributed.comm.core import CommClosedError


class RawSocket:
    """A connected socket in the running event loop. One coroutine uses it at a time; `close` ends its wait.

    Args:
        sock: connected and non-blocking; this object owns it until `detach`.
    """

    def __init__(self, sock: socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock: socket | None = sock
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or detached."""
        return self._sock is None

    def sockopt(self, level: int, name: int, nbytes: int) -> bytes:
        """Return an option of the socket, as `socket.getsockopt`."""
        return self._open().getsockopt(level, name, nbytes)

    async def receive(self, nbytes: int) -> bytes:
        """Return so many bytes.

        Raises:
            CommClosedError: the connection is closed, by the peer or on this end.
        """
        found = bytearray()
        while len(found) < nbytes:
            try:
                part = self._open().recv(nbytes - len(found))
            except (BlockingIOError, InterruptedError):
                await self._until_ready(is_reading=True)
                continue
            except OSError as error:
                raise CommClosedError(f"the connection failed before the first message: {error}") from None
            if not part:
                raise CommClosedError("the peer has closed the connection before the first message")
            found += part
        return bytes(found)

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            CommClosedError: see `receive`.
        """
        left = memoryview(data)
        while left:
            try:
                left = left[self._open().send(left, MSG_NOSIGNAL) :]
            except (BlockingIOError, InterruptedError):
                await self._until_ready(is_reading=False)
            except OSError as error:
                raise CommClosedError(f"the connection failed before the first message: {error}") from None

    def detach(self) -> socket:
        """Return the socket, which now belongs to the caller."""
        sock = self._open()
        self._sock = None
        return sock

    def close(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        sock.close()
        self._go_on()

    def abort_elsewhere(self, abort: Callable[[], None]) -> bool:
        """Let the loop call `abort` soon, if this is another thread than its own; return whether it is."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here or self._loop.is_closed():
            return False
        self._loop.call_soon_threadsafe(abort)
        return True

    def _open(self) -> socket:
        if self._sock is None:
            raise CommClosedError("the connection was closed on this end")
        return self._sock

    async def _until_ready(self, *, is_reading: bool) -> None:
        fd = self._open().fileno()
        self._waiter = self._loop.create_future()
        if is_reading:
            self._loop.add_reader(fd, self._go_on)
        else:
            self._loop.add_writer(fd, self._go_on)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._sock is not None:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)

    def _go_on(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
