"""How a rank connects to the server of its job: both prove who they are, before anything is said."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import Secret
from hocket.boot.sockets import Interface, keep_alive

_CONNECT_S = 2.0
_GREETING_S = 3.0  # a server speaks at once; if it is still starting, the next try finds it
_PROOF_S = 10.0  # for all of it


@dataclass(frozen=True)
class Place:
    """What a rank says of a connection, and proves.

    Args:
        secret: of the user.
        job: its name, with how many times it was restarted.
        size: ranks of the job.
        rank: of this process.
        role: of the connection.
        certificate: path of the certificate where TLS is asked for.
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
    """Connect, and exchange proofs.

    Args:
        interface: where the server may listen.
        port: at which.
        place: what this process says of itself.
        deadline_s: of all of it, by `time.monotonic`.

    Returns:
        The connection, blocking, and this end of what is said over it.

    Raises:
        OSError: nobody listens there, or whoever does says nothing.
        ProtocolError: it is not the server of this job.
    """
    tls = None
    if place.certificate is not None:
        from hocket.boot.tls import TlsFiles  # the module is large, and few ask for it

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
                raise TimeoutError("it did not prove itself in time")
            connection.settimeout(left_s)
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionError("it ended the connection")
            if end.take_in(data):
                raise ProtocolError("it speaks before it is asked")
            connection.sendall(end.outgoing)
            end.outgoing.clear()
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, end
