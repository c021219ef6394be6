"""What two hocket processes tell each other between the greeting and the first message: small objects of JSON."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TypeVar

from distributed.comm.core import CommClosedError

from hocket.dask.raw_socket import RawSocket
from hocket.typed_json import record_from

_LENGTH = struct.Struct("<I")
_MOST_NBYTES = 4096
_T = TypeVar("_T")


@dataclass(frozen=True)
class Move:
    """How a connection goes on.

    Args:
        is_local: over the local socket; otherwise over TCP.
        carrier: the library that brings large frames between hosts; "" if none does.
    """

    is_local: bool
    carrier: str = ""


@dataclass(frozen=True)
class CarrierEnd:
    """What the other end needs for a library between hosts.

    Args:
        number: of what this end receives.
        digits: bytes that this end expects first, in hexadecimal digits.
        probe_s: this end waits for them for so long; both wait no longer than the other one.
    """

    number: int
    digits: str
    probe_s: float


@dataclass(frozen=True)
class Carried:
    """Whether the first bytes have arrived over a library between hosts."""

    arrived: bool


@dataclass(frozen=True)
class Cookie:
    """Bytes in an end's memory, by which the other end can be sure that it reads the right process.

    Args:
        token: of the connection that moves to the local socket; "" from the end that accepts.
        address: of the bytes.
        digits: these bytes, in hexadecimal digits.
        device: the loan of such bytes in device memory, in hexadecimal digits; "": nothing is lent.
    """

    token: str
    address: int
    digits: str
    device: str = ""


@dataclass(frozen=True)
class MemoryAccess:
    """Whether an end can read the other one's memory.

    Args:
        reads: that of the host.
        takes_devices: that of devices; and it takes frames there.
    """

    reads: bool
    takes_devices: bool = False


async def tell_piece(sock: RawSocket, piece: Move | Cookie | MemoryAccess | CarrierEnd | Carried) -> None:
    """Send a piece."""
    body = json.dumps(asdict(piece)).encode()
    await sock.send(_LENGTH.pack(len(body)) + body)


async def hear_piece(sock: RawSocket, kind: type[_T]) -> _T:
    """Receive a piece.

    Raises:
        CommClosedError: what comes is no such piece, or the connection is closed.
    """
    (nbytes,) = _LENGTH.unpack(await sock.receive(_LENGTH.size))
    if nbytes > _MOST_NBYTES:
        raise CommClosedError(f"the peer announces {nbytes} bytes where at most {_MOST_NBYTES} are allowed")
    try:
        return record_from(kind, json.loads(await sock.receive(nbytes)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CommClosedError(f"the peer does not follow the protocol: {error}") from None
