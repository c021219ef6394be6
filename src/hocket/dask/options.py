"""What Dask's configuration says about connections."""

from __future__ import annotations

import logging
import socket

import dask
from dask.utils import parse_bytes, parse_timedelta

from hocket._native import MessageLog
from hocket.dask.defaults import OPTIONS, option, register_defaults
from hocket.dask.moving import OpenConnection
from hocket.dask.stream import MessageStream, StreamOptions

logger = logging.getLogger(__name__)
register_defaults()


def new_stream(connection: OpenConnection, peer_address: str) -> MessageStream:
    """Return a stream for the messages of a connection; closes its socket if that fails."""
    try:
        log = MessageLog(peer_address, connection.path, connection.peer_pid)
        return MessageStream(connection.sock, _options_of(connection), log if log.is_on else None)
    except BaseException:
        connection.sock.close()
        raise


def _options_of(connection: OpenConnection) -> StreamOptions:
    is_local = connection.sock.family == socket.AF_UNIX
    if not is_local:
        set_tcp_options(connection.sock)
    return StreamOptions(
        is_local=is_local,
        lender=connection.peer_pid if connection.borrows else 0,
        lends=connection.lends,
        carrier=connection.carrier,
        device_lender=connection.peer_pid if connection.borrows_devices else 0,
        large_nbytes=max(_nbytes("large"), 1),
        high_water=_nbytes("high-water"),
        spin_s=_spin_s() if connection.peer_pid else 0.0,
        timeout_s=_seconds("distributed.comm.timeouts.tcp"),
    )


def connect_timeout_s() -> float:
    """Return how long a new connection may take (`distributed.comm.timeouts.connect`)."""
    return _seconds("distributed.comm.timeouts.connect")


def _seconds(name: str) -> float:
    return float(parse_timedelta(dask.config.get(name), default="seconds"))


def carriers() -> list[str]:
    """Return the names of the libraries that may carry frames between hosts, in order of preference."""
    found = option("carriers")
    if isinstance(found, str):
        found = [each.strip() for each in found.split(",") if each.strip()]
    if not isinstance(found, list | tuple):
        raise ValueError(f"{OPTIONS}.carriers must be a list of names, not {found!r:.80}")
    return [str(each) for each in found]


def _nbytes(name: str) -> int:
    found = option(name)
    try:
        nbytes = parse_bytes(found)
    except (ValueError, TypeError, AttributeError):
        nbytes = -1
    if not 0 <= nbytes < 1 << 63:
        raise ValueError(f"{OPTIONS}.{name} must be a number of bytes such as '64 KiB', not {found!r:.80}")
    return nbytes


def _spin_s() -> float:
    found = option("spin")
    try:
        seconds = float(parse_timedelta(found, default="us"))
    except (ValueError, TypeError, AttributeError, KeyError):
        seconds = -1.0
    if not 0 <= seconds <= 1:
        raise ValueError(f"{OPTIONS}.spin must be a time of at most 1 s such as '100 us', not {found!r:.80}")
    return seconds


def set_tcp_options(sock: socket.socket) -> None:
    """Let the kernel find out that a host is gone, after `distributed.comm.timeouts.tcp`."""
    user_timeout_ms = max(1, round(1000 * _seconds("distributed.comm.timeouts.tcp")))  # 0 would be the system's
    timeout_s = user_timeout_ms // 1000
    num_probes = 10
    idle_s = max(2, timeout_s // 4)
    interval_s = max(1, (timeout_s - idle_s) // num_probes)
    for level, name, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, num_probes),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(idle_s, timeout_s - interval_s * num_probes)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms),
    ):
        sock.setsockopt(level, name, value)
