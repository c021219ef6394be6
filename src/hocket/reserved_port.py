"""A free TCP port that nobody else is given until its server starts, however long that takes."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from types import TracebackType
from typing import Self


class ReservedPort:
    """A free port on all of this host's addresses, for a server that another process will start.

    A socket that is bound to the port, and does not listen, keeps the kernel from giving the port to anybody who asks
    for a free one or connects. A server can listen there all the same if it sets SO_REUSEADDR, as torch's store,
    asyncio and gRPC do.

    The port is given back by `close`, at the end of a ``with``, or when the object goes.

    Raises:
        OSError: no port is free, or no socket can be opened.

    Example:
        >>> with ReservedPort() as port:
        ...     socket.create_server(("127.0.0.1", port.number)).close()
    """

    def __init__(self) -> None:
        bound = _bound_socket()
        self.number: int = bound.getsockname()[1]
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # set earlier, a port of others would do
        self.close = weakref.finalize(self, os.close, bound.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound_socket() -> socket.socket:
    """Return a socket bound to a port that is free for IPv4 and, where the host has it, for IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is there, and switched off
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
