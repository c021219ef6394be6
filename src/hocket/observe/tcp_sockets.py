"""What the kernel counts for TCP sockets: bytes, resends, and who limited each of them.

The dump and the messages about closed sockets (sock_diag(7)) need no special right. Names of counts are those of
`struct tcp_info` (linux/tcp.h): busy time is time with data to send; in a part of it the receiver's window was full, in
a part the sender's buffer was too small, in the rest the network decided.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hocket.errors import RecorderError
from hocket.observe.netlink import DUMP, SOCKETS, NetlinkSocket, attributes

TCP_NUMBERS = (
    "sent_nbytes", "resent_nbytes", "received_nbytes", "sent_segments", "resent_segments", "received_segments",
    "busy_s", "receiver_limited_s", "buffer_limited_s", "rtt_s", "least_rtt_s", "delivered_nbytes_s",
)  # fmt: skip
"""What is known of a socket, see `TcpSocket`."""
_FIELDS: dict[str, tuple[str, int, float]] = {
    "sent_nbytes": ("=Q", 200, 1.0), "resent_nbytes": ("=Q", 208, 1.0), "received_nbytes": ("=Q", 128, 1.0),
    "sent_segments": ("=I", 136, 1.0), "resent_segments": ("=I", 100, 1.0), "received_segments": ("=I", 140, 1.0),
    "busy_s": ("=Q", 168, 1e-6), "receiver_limited_s": ("=Q", 176, 1e-6), "buffer_limited_s": ("=Q", 184, 1e-6),
    "rtt_s": ("=I", 68, 1e-6), "least_rtt_s": ("=I", 148, 1e-6), "delivered_nbytes_s": ("=Q", 160, 1.0),
}  # fmt: skip
"""Of each number, its form and place in struct tcp_info and its unit in ours; older kernels have a shorter one."""
_UNKNOWN_RTT = (1 << 32) - 1
_BY_FAMILY, _TCP = 20, 6
"""SOCK_DIAG_BY_FAMILY; IPPROTO_TCP."""
_INFO = 2
_STATES = 0xFFF & ~(1 << 6 | 1 << 10)
"""All but TIME_WAIT, which has no counts, and LISTEN."""
_DESTROYED_GROUPS = (1, 3)
"""SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY."""
_REMOTE_PORT = 16 + 6
"""Where a message has the port of the other end: behind its head, family, state, timer, resends and own port."""
_QUERY = struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBBB2s2s16s16sI8s16xI")
"""struct inet_diag_msg: family, state, ...; ports; addresses; interface; cookie; ...; inode."""


@dataclass(frozen=True)
class TcpSocket:
    """One end of a TCP connection at one moment.

    Args:
        cookie: number that no other socket of this host has or had.
        inode: the number behind `socket:[...]` in /proc/PID/fd; 0: it is closed.
        local, remote: address and port of each end, such as "10.0.0.1:29500" or "[::1]:29500".
        numbers: by name of `TCP_NUMBERS`: bytes sent, without and with those that were sent again; segments; seconds in
            which it had data to send, and of these seconds limited by the receiver's window and by the own buffer; the
            round trip now and its least; bytes per second that arrived at the other end. None: this kernel does not
            count it.
    """

    cookie: int
    inode: int
    local: str
    remote: str
    numbers: dict[str, float | None]


class TcpSockets:
    """The TCP sockets of this network namespace.

    Raises:
        RecorderError: the kernel has no sock_diag for TCP.
    """

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(SOCKETS)
        try:
            self._closed = NetlinkSocket(SOCKETS, _DESTROYED_GROUPS)
        except RecorderError:
            self._netlink.close()
            raise
        try:
            # Some libraries close hundreds of sockets that never had another end.
            self._closed.drop_if_zero(_REMOTE_PORT)
        except RecorderError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets to the kernel."""
        self._netlink.close()
        self._closed.close()

    def open_sockets(self) -> Iterator[TcpSocket]:
        """Return the connections that exist now.

        Raises:
            RecorderError: the kernel does not answer.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            query = _QUERY.pack(family, _TCP, 1 << (_INFO - 1), 0, _STATES)
            for body in self._netlink.ask(_BY_FAMILY, query, DUMP):
                if (found := parse_socket(body)) is not None:
                    yield found

    def closed_sockets(self) -> Iterator[TcpSocket]:
        """Return those that were closed since the last call, with their last counts.

        Raises:
            RecorderError: some of them were lost, because too many were closed.
        """
        for body in self._closed.received():
            if (found := parse_socket(body)) is not None:
                yield found


def parse_socket(body: memoryview) -> TcpSocket | None:
    """Return the socket that a message of the kernel describes; None: it is of another form, or has no counts."""
    if len(body) < _ANSWER.size:
        return None
    family, _, _, _, local_port, remote_port, local, remote, _, cookie, inode = _ANSWER.unpack_from(body)
    info = attributes(body, _ANSWER.size).get(_INFO)
    if info is None or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    numbers: dict[str, float | None] = {}
    for name, (form, offset, unit) in _FIELDS.items():
        is_there = offset + struct.calcsize(form) <= len(info)
        numbers[name] = struct.unpack_from(form, info, offset)[0] * unit if is_there else None
    if numbers["least_rtt_s"] == _UNKNOWN_RTT * 1e-6:
        numbers["least_rtt_s"] = None
    return TcpSocket(
        int.from_bytes(cookie, "little"), inode, _end(family, local, local_port), _end(family, remote, remote_port),
        numbers,
    )  # fmt: skip


def _end(family: int, address: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address[:4])}:{number}"
    text = socket.inet_ntop(family, address)
    # A socket for both families has its IPv4 peer in this form; the other end may have it as IPv4.
    return f"{text.removeprefix('::ffff:')}:{number}" if text.startswith("::ffff:") else f"[{text}]:{number}"
