"""How a connection goes on after the greeting: over which socket, and who may read whose memory.

connector                                  listener
   | ---- greeting -------- TCP -----------> |
   | <--- greeting -------- TCP ------------ |   host, local socket, token
   | ==== Cookie: token === local =========> |   only on the same host, and if both ends are of the same user
   | ---- Move(is_local) -- TCP -----------> |   if it is local, TCP ends here
   | <=== Cookie ========== local ========== |
   | === MemoryAccess ====> <=== MemoryAccess = |   whether each end has found the other one's cookie in its memory,
                                                    and in that of its device

If it stays with TCP, and both ends have a library that carries frames between hosts, both go on with

   | -- CarrierEnd, then Carried -> <-- CarrierEnd, then Carried -- |   whether the first bytes have arrived over it
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from distributed.comm.core import CommClosedError

from hocket import _native
from hocket._native import FrameCarrier
from hocket.dask.carriers import CarrierLibrary, probe
from hocket.dask.devices import device_cookie
from hocket.dask.greeting import Word, this_host
from hocket.dask.local_socket import Moved, connect_locally, peer_of
from hocket.dask.pieces import Carried, CarrierEnd, Cookie, MemoryAccess, Move, hear_piece, tell_piece
from hocket.dask.raw_socket import RawSocket
from hocket.errors import HocketError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenConnection:
    """A connection that is ready for messages.

    Args:
        sock: connected and non-blocking.
        path: how large frames travel. "process" and "memory": through memory that both ends reach, in one process or in
            two; "mpi" and "ucx": by that library; "tcp": through the socket.
        peer_pid: the peer's process; 0: on another host.
        lends: whether the peer can copy large frames out of this process's memory.
        borrows: whether this process can copy them out of the peer's.
        carrier: brings large frames, if `path` is the name of a library.
        lends_devices: whether the peer can copy frames out of this process's device memory, and takes them in its own.
        borrows_devices: whether this process does so with the peer's.
    """

    sock: socket.socket
    path: str = "tcp"
    peer_pid: int = 0
    lends: bool = False
    borrows: bool = False
    carrier: FrameCarrier | None = None
    lends_devices: bool = False
    borrows_devices: bool = False


async def move_as_connector(
    sock: RawSocket,
    word: Word,
    libraries: dict[str, CarrierLibrary],
    opened: Callable[[RawSocket], None],
    uses_devices: bool,
    probe_s: float,
) -> OpenConnection:
    """Go on with a listener that has told a word.

    Args:
        sock: of the connection.
        word: of the listener.
        libraries: those of this process that carry frames between hosts.
        opened: called with the local socket, if the connection goes on over one.
        uses_devices: whether frames may be in device memory.
        probe_s: the first bytes over a library between hosts arrive within this time, or frames go over TCP.

    Raises:
        CommClosedError: the peer has closed the connection, or does not follow the protocol.
    """
    local = None
    if word.local_name and this_host() and word.host == this_host():
        local = connect_locally(word.local_name)
    if local is None:
        name = next((name for name in libraries if _reaches(libraries, name, word, tries=True)), "")
        await tell_piece(sock, Move(False, name))
        return await _over_tcp(sock, word, libraries, name, probe_s)
    opened(local)
    try:
        await tell_piece(local, await _own_cookie(word.token, local, uses_devices))
        await tell_piece(sock, Move(True))
        sock.close()
        return await _agreed(local, await hear_piece(local, Cookie), uses_devices)
    except BaseException:
        local.close()
        raise


async def move_as_listener(
    sock: RawSocket,
    word: Word,
    libraries: dict[str, CarrierLibrary],
    moving: asyncio.Future[Moved] | None,
    opened: Callable[[RawSocket], None],
    uses_devices: bool,
    probe_s: float,
) -> OpenConnection:
    """Go on with a connector that has told a word; see `move_as_connector`.

    Args:
        sock, word, libraries, opened, uses_devices, probe_s: see there.
        moving: the connection to the local socket; None: this end has none.
    """
    move = await hear_piece(sock, Move)
    if not move.is_local:
        if move.carrier and not _reaches(libraries, move.carrier, word):
            raise CommClosedError(f"the peer does not follow the protocol: it chose {move.carrier!r:.40}")
        return await _over_tcp(sock, word, libraries, move.carrier, probe_s)
    if moving is None:
        raise CommClosedError("the peer does not follow the protocol: this end has no local socket")
    moved = await moving
    opened(moved.sock)
    try:
        sock.close()
        await tell_piece(moved.sock, await _own_cookie("", moved.sock, uses_devices))
        return await _agreed(moved.sock, moved.cookie, uses_devices)
    except BaseException:
        moved.sock.close()
        raise


def _reaches(libraries: dict[str, CarrierLibrary], name: str, word: Word, tries: bool = False) -> bool:
    """Return whether a library reaches the peer; if it is to be tried, only if that has not failed of late."""
    if name not in libraries or name not in word.carriers:
        return False
    library, address = libraries[name], word.carriers[name]
    return library.reaches(address) and not (tries and library.has_failed(address))


async def _over_tcp(
    sock: RawSocket, word: Word, libraries: dict[str, CarrierLibrary], name: str, probe_s: float
) -> OpenConnection:
    """Return the connection over TCP, with a library beside it if bytes arrive over it."""
    if not name:
        return OpenConnection(sock.detach())
    end = CarrierEnd(libraries[name].next_number(), secrets.token_hex(16), probe_s)
    await tell_piece(sock, end)
    theirs = await hear_piece(sock, CarrierEnd)
    try:
        digits = bytes.fromhex(theirs.digits)
        libraries[name].check_number(theirs.number)
        carrier = libraries[name].carrier(word.carriers[name], theirs.number, end.number)
        arrived = await probe(carrier, digits, bytes.fromhex(end.digits), min(probe_s, theirs.probe_s))
    except (ValueError, HocketError) as error:
        logger.warning("frames go over TCP, because %s cannot carry them: %s", name, error)
        arrived = False
    await tell_piece(sock, Carried(arrived))
    if (await hear_piece(sock, Carried)).arrived and arrived:
        return OpenConnection(sock.detach(), name, carrier=carrier)
    libraries[name].note_failure(word.carriers[name])
    logger.warning("frames go over TCP, because nothing arrives by %s at the peer", name)
    return OpenConnection(sock.detach())


async def _agreed(local: RawSocket, cookie: Cookie, uses_devices: bool) -> OpenConnection:
    """Return the connection over a local socket, once both ends know who can read the other one's memory."""
    pid = peer_of(local) or 0
    try:
        digits = bytes.fromhex(cookie.digits)
    except ValueError:
        raise CommClosedError("the peer does not follow the protocol: its cookie has no digits") from None
    borrows = pid > 0 and 0 < cookie.address < 1 << 64 and _native.reads_cookie(pid, cookie.address, digits)
    borrows_devices = uses_devices and pid > 0 and await device_cookie().can_read(cookie.device, digits, pid)
    await tell_piece(local, MemoryAccess(borrows, borrows_devices))
    theirs = await hear_piece(local, MemoryAccess)
    return OpenConnection(
        local.detach(),
        "process" if pid == os.getpid() else "memory",
        pid,
        lends=theirs.reads,
        borrows=borrows,
        lends_devices=theirs.takes_devices,
        borrows_devices=borrows_devices,
    )


async def _own_cookie(token: str, local: RawSocket, uses_devices: bool) -> Cookie:
    _native.has_single_copy()  # permits others to read this process's memory, where that is needed
    address, found = _native.memory_cookie()
    loan = await device_cookie().loan(peer_of(local) != os.getpid()) if uses_devices else None
    return Cookie(token, address, found.hex(), "" if loan is None else loan.told.hex())
