"""Listening for Dask processes."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import dask
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError
from distributed.comm.utils import ensure_concrete_host
from tornado import netutil

from hocket.dask.accepting import Acceptor
from hocket.dask.carriers import own_libraries
from hocket.dask.comm import HocketComm
from hocket.dask.local_socket import LocalSocket
from hocket.dask.opening import CommOpening
from hocket.dask.options import carriers, connect_timeout_s
from hocket.dask.raw_socket import RawSocket

logger = logging.getLogger(__name__)


class HocketListener(BaseListener):
    """Listens on an address of a scheme; see `distributed.comm.registry.Backend.get_listener`."""

    def __init__(
        self,
        scheme: str,
        address: str,
        handle_comm: Callable[[Comm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **_connection_args: Any,
    ) -> None:
        super().__init__()
        self.prefix = f"{scheme}://"
        self._scheme = scheme
        self._host, self._port = parse_host_port(address, default_port)
        self._default_host = default_host
        self._handle_comm, self._deserialize, self._allow_offload = handle_comm, deserialize, allow_offload
        self._bound: tuple[str, int] | None = None
        self._acceptor: Acceptor | None = None
        self._local_socket: LocalSocket | None = None

    async def start(self) -> None:
        """See `Listener.start`."""
        own_libraries(carriers(), self._scheme)  # what cannot be used is said before anybody connects
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        sockets = _bound_sockets(self._host, self._port, backlog)
        with suppress(OSError):  # a system without abstract sockets: everything goes over TCP
            self._local_socket = LocalSocket(backlog, connect_timeout_s())
        self._acceptor = Acceptor(sockets, self._serve)
        # Where both are bound, IPv4 is told: IPv6 is broken in many places.
        by_family = sorted(sockets, key=lambda each: each.family != socket.AF_INET)
        self._bound = by_family[0].getsockname()[:2]

    def stop(self) -> None:
        """See `Listener.stop`."""
        acceptor, self._acceptor = self._acceptor, None
        local_socket, self._local_socket = self._local_socket, None
        if acceptor is not None:
            acceptor.close()
        if local_socket is not None:
            local_socket.close()

    async def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer_address = self.prefix + unparse_host_port(*sock.getpeername()[:2])
            local_address = self.prefix + unparse_host_port(*sock.getsockname()[:2])
        except OSError:  # the peer has gone already
            sock.close()
            return
        try:
            libraries = own_libraries(carriers(), self._scheme)
        except (ValueError, RuntimeError) as error:  # the configuration has changed, or MPI has ended
            logger.error("the connection from %s is closed: %s", peer_address, error)
            sock.close()
            return
        opening = CommOpening(
            RawSocket(sock),
            connect_timeout_s(),
            self._local_socket,
            libraries,
            is_listener=True,
            uses_devices=self._deserialize,
        )
        comm = HocketComm(opening, local_address, peer_address, self._deserialize)
        comm.allow_offload = self._allow_offload
        if self._acceptor is None:  # stopped meanwhile; nobody else would end the handshake
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError as error:
            logger.info("the connection from %s ended in its handshake: %s", peer_address, error)
            comm.abort()
            return
        await self._handle_comm(comm)

    @property
    def listen_address(self) -> str:
        """See `Listener.listen_address`."""
        return self.prefix + unparse_host_port(*self._host_port())

    @property
    def contact_address(self) -> str:
        """See `Listener.contact_address`."""
        host, port = self._host_port()
        return self.prefix + unparse_host_port(self._concrete(host), port)

    def _concrete(self, host: str) -> str:
        return str(ensure_concrete_host(host, default_host=self._default_host))  # type: ignore[no-untyped-call]

    def _host_port(self) -> tuple[str, int]:
        if self._bound is None:
            raise ValueError("the listener has no address before it is started: await start()")
        return self._bound


def _bound_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    for attempt in range(5):
        try:
            return netutil.bind_sockets(port, address=host, backlog=backlog)
        except OSError as error:
            # A port that was free for one family can be in use for the other one.
            if port or error.errno != errno.EADDRINUSE or attempt == 4:
                raise
    raise AssertionError("unreachable")
