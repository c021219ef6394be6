"""Local sockets, to which connections between processes of one user on one host move.

The kernel tells each end which process and which user is at the other one, so nobody has to be believed.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import struct
from dataclasses import dataclass

from distributed.comm.core import CommClosedError

from hocket.dask.accepting import Acceptor
from hocket.dask.pieces import Cookie, hear_piece
from hocket.dask.raw_socket import RawSocket

_NAME = re.compile(r"hocket-dask-[0-9a-f]{32}")
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Moved:
    """A connection that has come to a local socket.

    Args:
        sock: of this end.
        cookie: of the peer.
    """

    sock: RawSocket
    cookie: Cookie


def peer_of(sock: RawSocket) -> int | None:
    """Return the process at the other end of a local socket; None: it is that of another user.

    0 is a process that this one cannot see, of another container.
    """
    pid, user, _ = _CREDENTIALS.unpack(sock.sockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid if user == os.geteuid() else None


def connect_locally(name: str) -> RawSocket | None:
    """Return a connection to a local socket of this user's processes; None if no such socket can be reached."""
    if not _NAME.fullmatch(name):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(f"\0{name}")  # at once, or not at all
    except OSError:
        sock.close()
        return None
    raw = RawSocket(sock)
    if peer_of(raw) is not None:
        return raw
    raw.close()
    return None


class LocalSocket:
    """A local socket of a listener. Its name is random and abstract: it leaves no file behind.

    Args:
        backlog: number of connections that may wait.
        timeout_s: a connection must have told its token after so many seconds.
    """

    def __init__(self, backlog: int, timeout_s: float) -> None:
        self.name = f"hocket-dask-{secrets.token_hex(16)}"
        self._expected: dict[str, asyncio.Future[Moved]] = {}
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.bind(f"\0{self.name}")
            sock.listen(backlog)
        except BaseException:
            sock.close()
            raise
        self._timeout_s = timeout_s
        self._acceptor = Acceptor([sock], self._admit)

    def expect(self) -> tuple[str, asyncio.Future[Moved]]:
        """Return a new token, and the connection that will come with it."""
        token = secrets.token_hex(16)
        self._expected[token] = future = asyncio.get_running_loop().create_future()
        return token, future

    def forget(self, token: str) -> None:
        """Expect a token no longer."""
        self._expected.pop(token, None)

    def close(self) -> None:
        """Accept no more connections."""
        self._acceptor.close()

    async def _admit(self, sock: socket.socket) -> None:
        raw = RawSocket(sock)
        try:
            if peer_of(raw) is None:
                raise CommClosedError("the peer is of another user")
            async with asyncio.timeout(self._timeout_s):
                cookie = await hear_piece(raw, Cookie)
            future = self._expected.pop(cookie.token, None)
            if future is None or future.done():
                raise CommClosedError("the peer has a token that nobody expects")
            future.set_result(Moved(raw, cookie))
        except TimeoutError:
            raw.close()
        except BaseException:
            raw.close()
            raise
