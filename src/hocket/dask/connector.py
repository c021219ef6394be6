"""Connecting to a Dask process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Connector

from hocket.dask.carriers import own_libraries
from hocket.dask.comm import HocketComm
from hocket.dask.opening import CommOpening
from hocket.dask.options import carriers, connect_timeout_s
from hocket.dask.plain import check_encryption, connect_encrypted
from hocket.dask.raw_socket import RawSocket

_NEXT_AFTER_S = 1.0
"""If a host has several addresses, each but the last one has so long to answer."""


class HocketConnector(Connector):
    """Connects to addresses of a scheme."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        """See `Connector.connect`.

        Raises:
            ValueError: the address is malformed.
            OSError: nobody can be reached there.
            RuntimeError: encryption is required, but there are no certificates; or MPI runs, but cannot be used.
        """
        host, port = parse_host_port(address)
        if check_encryption(f"{self._scheme}://{address}", connection_args):
            return await connect_encrypted(self._scheme, address, deserialize, **connection_args)
        libraries = own_libraries(carriers(), self._scheme)
        sock = await _connected(host, port)
        try:
            local_address = f"{self._scheme}://{unparse_host_port(*sock.getsockname()[:2])}"
        except BaseException:
            sock.close()
            raise
        opening = CommOpening(
            RawSocket(sock), connect_timeout_s(), None, libraries, is_listener=False, uses_devices=deserialize
        )
        return HocketComm(opening, local_address, f"{self._scheme}://{address}", deserialize)


async def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that answers."""
    loop = asyncio.get_running_loop()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = OSError(f"{host} has no address")
    for number, (family, kind, protocol, _, where) in enumerate(found, 1):
        try:
            sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:  # for example, this system has no IPv6
            failed = error
            continue
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(None if number == len(found) else _NEXT_AFTER_S):
                await loop.sock_connect(sock, where)
            return sock
        except (OSError, TimeoutError) as error:
            sock.close()
            failed = error if isinstance(error, OSError) else OSError(f"{where[0]} does not answer")
        except BaseException:
            sock.close()
            raise
    raise failed
