"""Connecting to a Dask process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Connector

from hocket.dask.comm import HocketComm
from hocket.dask.opening import CommOpening
from hocket.dask.options import connect_timeout_s
from hocket.dask.plain import check_encryption, connect_encrypted
from hocket.dask.raw_socket import RawSocket


class HocketConnector(Connector):
    """Connects to addresses of a scheme."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        """See `Connector.connect`.

        Raises:
            ValueError: the address is malformed.
            OSError: nobody can be reached there.
            RuntimeError: encryption is required, but there are no certificates.
        """
        host, port = parse_host_port(address)
        if check_encryption(f"{self._scheme}://{address}", connection_args):
            return await connect_encrypted(self._scheme, address, deserialize, **connection_args)
        sock = await _connected(host, port)
        try:
            local_address = f"{self._scheme}://{unparse_host_port(*sock.getsockname()[:2])}"
        except BaseException:
            sock.close()
            raise
        opening = CommOpening(RawSocket(sock), connect_timeout_s(), None, is_listener=False)
        return HocketComm(opening, local_address, f"{self._scheme}://{address}", deserialize)


async def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that answers."""
    loop = asyncio.get_running_loop()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, where)
            return sock
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
    raise failed
