"""Listening sockets whose connections are handled by a coroutine."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

logger = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()  # event loops keep weak references only
_PAUSE_S = 1.0
"""After an error that would occur again at once."""


class Acceptor:
    """Accepts connections in the running event loop.

    Args:
        sockets: listening and non-blocking; the acceptor owns them.
        handle: called with each connection, which is non-blocking; it owns it.
    """

    def __init__(self, sockets: Sequence[socket.socket], handle: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets, self._handle = list(sockets), handle
        for each in self._sockets:
            self._watch(each)

    def close(self) -> None:
        """Accept no more connections; those that were accepted go on."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            if not self._loop.is_closed():
                self._loop.remove_reader(each.fileno())
            each.close()

    def _watch(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(16):  # then it is the turn of others
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:  # for example, no file descriptors are left
                logger.warning("cannot accept a connection: %s", error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_S, self._watch, listening)
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._run(sock))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    async def _run(self, sock: socket.socket) -> None:
        try:
            await self._handle(sock)
        except OSError as error:
            logger.info("a connection has ended: %s", error)
