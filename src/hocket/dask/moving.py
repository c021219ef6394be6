"""How a connection goes on after the greeting: over which socket, and who may read whose memory.

connector                                  listener
   | ---- greeting -------- TCP -----------> |
   | <--- greeting -------- TCP ------------ |   host, local socket, token
   | ==== Cookie: token === local =========> |   only on the same host, and if both ends are of the same user
   | ---- Move(is_local) -- TCP -----------> |   if it is local, TCP ends here
   | <=== Cookie ========== local ========== |
   | === MemoryAccess ====> <=== MemoryAccess = |   whether each end has found the other one's cookie in its memory
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from distributed.comm.core import CommClosedError

from hocket import _native
from hocket.dask.greeting import Word, this_host
from hocket.dask.local_socket import Moved, connect_locally, peer_of
from hocket.dask.pieces import Cookie, MemoryAccess, Move, hear_piece, tell_piece
from hocket.dask.raw_socket import RawSocket


@dataclass(frozen=True)
class OpenConnection:
    """A connection that is ready for messages.

    Args:
        sock: connected and non-blocking.
        path: how large frames travel. "process" and "memory": through memory that both ends reach, in one process or in
            two; "tcp": through the socket.
        peer_pid: the peer's process; 0: on another host.
        lends: whether the peer can copy large frames out of this process's memory.
        borrows: whether this process can copy them out of the peer's.
    """

    sock: socket.socket
    path: str = "tcp"
    peer_pid: int = 0
    lends: bool = False
    borrows: bool = False


async def move_as_connector(sock: RawSocket, word: Word, opened: Callable[[RawSocket], None]) -> OpenConnection:
    """Go on with a listener that has told a word.

    Args:
        sock: of the connection.
        word: of the listener.
        opened: called with the local socket, if the connection goes on over one.

    Raises:
        CommClosedError: the peer has closed the connection, or does not follow the protocol.
    """
    local = None
    if word.local_name and this_host() and word.host == this_host():
        local = connect_locally(word.local_name)
    if local is None:
        await tell_piece(sock, Move(False))
        return OpenConnection(sock.detach())
    opened(local)
    try:
        await tell_piece(local, _own_cookie(word.token))
        await tell_piece(sock, Move(True))
        sock.close()
        return await _agreed(local, await hear_piece(local, Cookie))
    except BaseException:
        local.close()
        raise


async def move_as_listener(
    sock: RawSocket, moving: asyncio.Future[Moved] | None, opened: Callable[[RawSocket], None]
) -> OpenConnection:
    """Go on with a connector that has told a word; see `move_as_connector`.

    Args:
        sock, opened: see there.
        moving: the connection to the local socket; None: this end has none.
    """
    if not (await hear_piece(sock, Move)).is_local:
        return OpenConnection(sock.detach())
    if moving is None:
        raise CommClosedError("the peer does not follow the protocol: this end has no local socket")
    moved = await moving
    opened(moved.sock)
    try:
        sock.close()
        await tell_piece(moved.sock, _own_cookie(""))
        return await _agreed(moved.sock, moved.cookie)
    except BaseException:
        moved.sock.close()
        raise


async def _agreed(local: RawSocket, cookie: Cookie) -> OpenConnection:
    """Return the connection over a local socket, once both ends know who can read the other one's memory."""
    pid = peer_of(local) or 0
    try:
        digits = bytes.fromhex(cookie.digits)
    except ValueError:
        raise CommClosedError("the peer does not follow the protocol: its cookie has no digits") from None
    borrows = pid > 0 and 0 < cookie.address < 1 << 64 and _native.reads_cookie(pid, cookie.address, digits)
    await tell_piece(local, MemoryAccess(borrows))
    lends = (await hear_piece(local, MemoryAccess)).reads
    return OpenConnection(local.detach(), "process" if pid == os.getpid() else "memory", pid, lends, borrows)


def _own_cookie(token: str) -> Cookie:
    _native.has_single_copy()  # permits others to read this process's memory, where that is needed
    address, found = _native.memory_cookie()
    return Cookie(token, address, found.hex())
