"""TCP sockets of a job: its listening addresses, and the detection of dead hosts."""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket.errors import BootstrapMismatch

_BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_RESOLVING_S = 30.0
_RETRY_S = 0.02


@dataclass(frozen=True)
class Interface:
    """The address of an interface; the unspecified family means all interfaces.

    Args:
        family: address family.
        place: socket address without the port: address, and for IPv6 flow and scope.
    """

    family: int
    place: tuple[Any, ...]

    @property
    def is_loopback(self) -> bool:
        return self.family != socket.AF_UNSPEC and _is_loopback(self.place[0])

    def at(self, port: int) -> tuple[Any, ...]:
        """Return the socket address with a port."""
        return (self.place[0], port, *self.place[1:])


_EVERYWHERE = Interface(socket.AF_UNSPEC, ("",))


def resolve(address: str, patience_s: float) -> list[Interface]:
    """Return the addresses of a name or an address.

    Raises:
        OSError: the name has no address, or name servers did not answer within `patience_s` (resolvers have their own
            timeouts).
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # UnicodeError: a label is too long
            answers.put(error)

    if _is_number(address):
        ask()
    else:
        threading.Thread(target=ask, name="hocket name", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, patience_s))
    except queue.Empty:
        raise TimeoutError(f"the name {address!r} was not resolved in time") from None
    if isinstance(answer, Exception):
        raise OSError(f"the name {address!r} cannot be resolved: {answer}")
    return list(dict.fromkeys(Interface(int(each[0]), (each[4][0], *each[4][2:])) for each in answer))


def listen(address: str, ports: Sequence[int], patience_s: float = 0.0) -> list[socket.socket]:
    """Listen at the first free port.

    Args:
        address: name or address by which ranks reach this host. If it is a loopback address, as the own name of many
            hosts, or that of a gateway, as in containers, all interfaces are used.
        ports: ports to try, in order; 0 means any.
        patience_s: seconds to wait for a port in use, for example by a job that is ending.

    Returns:
        One socket for each address of the name, all with the same port.

    Raises:
        BootstrapMismatch: no port is free, or listening fails.
    """
    deadline = time.monotonic() + patience_s
    interfaces = _interfaces(address)
    while True:
        for port in ports:
            try:
                return _listen_at(interfaces, port)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise BootstrapMismatch(f"rank 0 cannot listen at port {port} of {address}: {error}") from error
        if time.monotonic() > deadline:
            break
        time.sleep(_RETRY_S)
    raise BootstrapMismatch(
        f"none of the ports {ports[0]} to {ports[-1]} is free at the host of rank 0 ({address}); "
        "set HOCKET_CONTROL to HOST:PORT, equal on all ranks"
    )


def _interfaces(address: str) -> list[Interface]:
    """Return the interfaces to listen at."""
    try:
        interfaces = resolve(address, _RESOLVING_S)
    except OSError:
        return [_EVERYWHERE]
    if all(each.is_loopback for each in interfaces):
        # Only ranks of this host can use a loopback address or "localhost".
        return interfaces if address == "localhost" or _is_number(address) else [_EVERYWHERE]
    return [each for each in interfaces if not each.is_loopback]


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel detect within seconds that the other host does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listen_at(interfaces: Sequence[Interface], port: int) -> list[socket.socket]:
    """Listen at one port of the given interfaces that this host has; of all interfaces if it has none of them."""
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for interface in interfaces:
            try:
                listeners.append(_listener(interface, listeners[0].getsockname()[1] if listeners else port))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
    except BaseException:
        for each in listeners:
            each.close()
        raise
    if absent is not None and not listeners:
        if all(each.is_loopback for each in interfaces):
            raise absent
        return [_listener(_EVERYWHERE, port)]  # the address belongs to a gateway that forwards to this host
    return listeners


def _listener(interface: Interface, port: int) -> socket.socket:
    if interface.family != socket.AF_UNSPEC:
        listener = socket.socket(interface.family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if interface.family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(interface.at(port))
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener
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
