"""Connect a rank to the server of its job: both sides authenticate before any other message."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import Secret
from hocket.boot.sockets import Interface, keep_alive

_CONNECT_S = 2.0
_GREETING_S = 3.0  # a running server sends its greeting at once; a starting one is found by the next try
_PROOF_S = 10.0  # for the whole authentication


@dataclass(frozen=True)
class Place:
    """The identity that a rank states and proves on a connection.

    Args:
        secret: secret of the user.
        job: name of the job, with the number of its restarts.
        size: number of ranks of the job.
        rank: rank of this process.
        role: role of the connection.
        certificate: path of the certificate if TLS is enabled.
    """

    secret: Secret
    job: str
    size: int
    rank: int
    role: Role = Role.CONTROL
    certificate: str | None = None


def connect_once(
    interface: Interface, port: int, place: Place, deadline_s: float = float("inf")
) -> tuple[socket.socket, RankEnd]:
    """Connect to a server and authenticate in both directions.

    Args:
        interface: address where the server may listen.
        port: port of the server.
        place: identity of this process.
        deadline_s: deadline for the whole call, by `time.monotonic`.

    Returns:
        The connection, blocking, and this end of its protocol.

    Raises:
        OSError: no process listens there, or it does not answer.
        ProtocolError: the server does not belong to this job.
    """
    tls = None
    if place.certificate is not None:
        from hocket.boot.tls import TlsFiles  # the module is large, and TLS is rarely enabled

        tls = TlsFiles(place.certificate, None).rank_side()
    connection = socket.socket(interface.family, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.001, min(_CONNECT_S, deadline_s - time.monotonic())))
        connection.connect(interface.at(port))
        keep_alive(connection)
        end = RankEnd(place.secret, place.job, place.size, place.rank, place.role, tls)
        proof_deadline_s = min(deadline_s, time.monotonic() + _PROOF_S)
        greeting_deadline_s = min(deadline_s, time.monotonic() + _GREETING_S)
        while not end.is_proven:
            left_s = (proof_deadline_s if end.is_greeted else greeting_deadline_s) - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("it did not authenticate in time")
            connection.settimeout(left_s)
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionError("it closed the connection")
            if end.take_in(data):
                raise ProtocolError("it sent a message before authentication was complete")
            connection.sendall(end.outgoing)
            end.outgoing.clear()
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, end
