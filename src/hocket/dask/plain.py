"""Connections with processes that speak distributed's TCP protocol only, or encrypted: those of distributed itself."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from socket import socket
from typing import Any

from distributed.comm.core import Comm, Listener
from distributed.comm.tcp import MAX_BUFFER_SIZE, TCP, TLS, TLSConnector, TLSListener
from tornado.iostream import IOStream


class PlainComm(TCP):
    """A connection after its greeting, over distributed's TCP protocol."""

    @property
    def extra_info(self) -> dict[str, Any]:
        """See `HocketComm.extra_info`."""
        return {**super().extra_info, "path": "plain tcp"}


class EncryptedComm(TLS):
    """An encrypted connection; nothing of it goes around the socket."""

    @property
    def extra_info(self) -> dict[str, Any]:
        """Those of TLS, and "path"."""
        return {**super().extra_info, "path": "tls"}


def plain_comm(sock: socket, like: Comm) -> PlainComm:
    """Return a connection over a socket, with the addresses and options of another one."""
    comm = PlainComm(
        IOStream(sock, max_buffer_size=MAX_BUFFER_SIZE), like.local_address, like.peer_address, like.deserialize
    )
    comm.allow_offload = like.allow_offload
    return comm


def check_encryption(address: str, connection_args: dict[str, Any]) -> bool:
    """Return whether a connection is to be encrypted.

    Raises:
        RuntimeError: encryption is required, but there are no certificates; this is the error of distributed's TCP.
    """
    is_possible = isinstance(connection_args.get("ssl_context"), ssl.SSLContext)
    if connection_args.get("require_encryption") and not is_possible:
        raise RuntimeError(
            f"encryption is required by Dask's configuration, but there is no certificate for {address}: set "
            "distributed.comm.tls"
        )
    return is_possible


async def connect_encrypted(scheme: str, address: str, deserialize: bool, **connection_args: Any) -> Any:
    """Connect to an address of a scheme."""
    connector = type("_Connector", (TLSConnector,), {"prefix": f"{scheme}://", "comm_class": EncryptedComm})()
    return await connector.connect(address, deserialize, **connection_args)


def listen_encrypted(
    scheme: str,
    address: str,
    handle_comm: Callable[[Comm], Awaitable[None]],
    deserialize: bool,
    **connection_args: Any,
) -> Listener:
    """Return a listener on an address of a scheme."""
    kind = type("_Listener", (TLSListener,), {"prefix": f"{scheme}://", "comm_class": EncryptedComm})
    listener: Listener = kind(address, handle_comm, deserialize, **connection_args)
    return listener
