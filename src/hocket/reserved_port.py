"""A free TCP port that the kernel assigns to no other process until its server starts."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from types import TracebackType
from typing import Self


class ReservedPort:
    """A free port on all of this host's addresses, for a server that another process will start.

    A socket that is bound to the port and does not listen keeps the kernel from choosing the port for another socket.
    A server can still listen there if it sets SO_REUSEADDR, as torch's store, asyncio and gRPC do.

    The port is released by `close`, at the end of a ``with``, or when the object is deleted.

    Raises:
        OSError: no port is free, or no socket can be opened.

    Examples:
        >>> with ReservedPort() as port:
        ...     socket.create_server(("127.0.0.1", port.number)).close()
    """

    def __init__(self) -> None:
        bound = _bound_socket()
        self.number: int = bound.getsockname()[1]
        bound.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # before bind, the kernel could choose a port in use
        self.close = weakref.finalize(self, os.close, bound.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound_socket() -> socket.socket:
    """Return a socket bound to a port that is free for IPv4 and, if the host has IPv6, for IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is supported but switched off
            return _bind(socket.AF_INET6)
    return _bind(socket.AF_INET)


def _bind(family: int) -> socket.socket:
    bound = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
    except BaseException:
        bound.close()
        raise
    return bound
