"""TCP sockets of a job: where its server listens, and how the death of a host is noticed."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from hocket.errors import BootstrapMismatch

_BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_EVERYWHERE = (socket.AF_UNSPEC, "")


def listen(address: str, ports: Sequence[int]) -> list[socket.socket]:
    """Listen at the first port that is free.

    Args:
        address: name or address by which the ranks reach this host. On many hosts the own name is an address of the
            loopback, and in containers it may be that of a gateway: then all interfaces are meant.
        ports: to try, in order; 0 stands for any.

    Returns:
        One socket for each address that the name stands for, all with one port.

    Raises:
        BootstrapMismatch: none is free, or none can be had.
    """
    for port in ports:
        try:
            return _listen_at(_interfaces(address), port)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # the address of a gateway that leads here
                try:
                    return _listen_at([_EVERYWHERE], port)
                except OSError as another:
                    error = another
            if error.errno not in _TAKEN:
                raise BootstrapMismatch(f"rank 0 cannot listen at port {port} of {address}: {error}") from error
    raise BootstrapMismatch(
        f"none of the ports {ports[0]} to {ports[-1]} is free at the host of rank 0 ({address}); "
        "set HOCKET_CONTROL to HOST:PORT, equal on all ranks"
    )


def _interfaces(address: str) -> list[tuple[int, str]]:
    """Return families and addresses to listen at."""
    try:
        resolved = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return [_EVERYWHERE]
    found: list[tuple[int, str]] = list(dict.fromkeys((int(each[0]), str(each[4][0])) for each in resolved))
    if all(_is_loopback(each) for _, each in found):
        if address == "localhost" or _is_number(address):
            return found  # whoever is told that is on this host
        return [_EVERYWHERE]
    return [each for each in found if not _is_loopback(each[1])]


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within seconds that the other side's host does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listen_at(places: Sequence[tuple[int, str]], port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for family, host in places:
            listeners.append(_listener(family, host, port if not listeners else listeners[0].getsockname()[1]))
    except BaseException:
        for each in listeners:
            each.close()
        raise
    return listeners


def _listener(family: int, host: str, port: int) -> socket.socket:
    if family != socket.AF_UNSPEC:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
