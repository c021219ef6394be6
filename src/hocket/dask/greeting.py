"""The first message of a connection: the handshake of distributed, with a word of hocket in it.

Who speaks distributed's TCP protocol only does not look at that word. So `mpi://` reaches a process that listens on
`tcp://`, and the other way round, over distributed's protocol.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from distributed.comm.core import CommClosedError, FatalCommClosedError

from hocket.dask.raw_socket import RawSocket
from hocket.typed_json import record_from

VERSION = 3
"""Of what follows the greeting."""
KEY = "hocket"
_LENGTH = struct.Struct("<Q")
_MOST_NBYTES = 64 << 10
"""Of a greeting."""


@dataclass(frozen=True)
class Word:
    """What an end tells of itself.

    Args:
        version: of the protocol that follows.
        host: identifies the running kernel of its machine.
        byte_order: of numbers in its memory.
        local_name: of the local socket on which it can be reached; "": on none.
        token: what must be told there.
        carriers: libraries between hosts by which it can be reached, and what they need for that.
    """

    version: int
    host: str
    byte_order: str
    local_name: str = ""
    token: str = ""
    carriers: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what travels in the handshake."""
        return asdict(self)


@cache
def this_host() -> str:
    """Identify the running kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def own_word(local_name: str, token: str, carriers: dict[str, str]) -> Word:
    """Return the word of this process."""
    return Word(VERSION, this_host(), sys.byteorder, local_name, token, carriers)


def word_in(greeting: dict[str, Any]) -> Word | None:
    """Return the word in a peer's greeting; None: it speaks distributed's protocol only.

    Raises:
        FatalCommClosedError: the peer speaks another version, or has another order of bytes.
        CommClosedError: the word is malformed.
    """
    if KEY not in greeting:
        return None
    found = greeting[KEY]
    if isinstance(found, dict) and type(version := found.get("version")) is int and version != VERSION:
        raise FatalCommClosedError(
            f"the peer speaks version {version} of hocket's protocol for Dask, and this process version {VERSION}: "
            "install the same version of hocket on both"
        )
    try:
        word = record_from(Word, found)
    except (TypeError, KeyError) as error:
        raise CommClosedError(f"the peer does not follow the protocol: {error}") from None
    if word.byte_order != sys.byteorder:
        raise FatalCommClosedError(
            f"the peer's processor is {word.byte_order}-endian, but this one {sys.byteorder}-endian: use tcp://"
        )
    return word


async def tell(sock: RawSocket, greeting: dict[str, Any]) -> int:
    """Send the greeting as distributed's TCP protocol does: a message of one frame. Return its bytes."""
    frame = msgpack.dumps(greeting, use_bin_type=True)
    body = _LENGTH.pack(1) + _LENGTH.pack(len(frame)) + frame
    await sock.send(_LENGTH.pack(len(body)) + body)
    return len(body)


async def hear(sock: RawSocket) -> dict[str, Any]:
    """Receive the peer's greeting. It consists of texts and numbers: nothing is unpickled.

    Raises:
        CommClosedError: what comes is no greeting, or the connection is closed.
    """
    (nbytes,) = _LENGTH.unpack(await sock.receive(_LENGTH.size))
    if not 2 * _LENGTH.size <= nbytes <= _MOST_NBYTES:
        raise CommClosedError(f"the peer's first message has {nbytes} bytes: it does not speak the protocol of Dask")
    body = await sock.receive(nbytes)
    num_frames, frame_nbytes = struct.unpack_from("<2Q", body)
    if num_frames != 1 or frame_nbytes != nbytes - 2 * _LENGTH.size:
        raise CommClosedError("the peer's first message is not one frame: it does not speak the protocol of Dask")
    try:
        found = msgpack.loads(body[2 * _LENGTH.size :], use_list=False, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack has many
        raise CommClosedError(f"the peer's first message cannot be read: {error!r:.200}") from None
    if not isinstance(found, dict):
        raise CommClosedError(f"the peer's first message must be a dictionary, not {type(found).__name__}")
    return found
