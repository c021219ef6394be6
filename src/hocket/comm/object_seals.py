"""Seals on the bytes of objects. Libraries do not authenticate senders, and unpickling runs code from the bytes.

A seal is an HMAC-SHA256 (RFC 2104) under a key that only the ranks of the job have. It covers the communicator, the
operation's number, the sender, the receiver, the library, whether the bytes are a pickle or an error text, and the
bytes themselves. Bytes are unpickled only if a rank of this job sent them as exactly this object.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import Counter
from dataclasses import dataclass, field

from hocket.errors import AuthenticationError

SEAL_NBYTES = 32
EVERYONE = -1
_HEADER = struct.Struct(">Qqqqq?")
_COLLECTIVE = -1  # in the place of a message's tag


@dataclass(frozen=True)
class Sealer:
    """Seals the objects of one operation.

    Args:
        key: key of the job; empty: nothing is sealed, because only shared memory carries the objects.
        communicator: key of the communicator.
        number: number of the operation on the communicator, or of the message with this library, tag and peer.
        tag: tag of a message.
        backend: library that carries a message; messages are numbered separately for each library.
    """

    key: bytes = field(repr=False)
    communicator: int
    number: int
    tag: int = _COLLECTIVE
    backend: str = ""

    @property
    def nbytes(self) -> int:
        """Size of a seal in bytes; 0 if nothing is sealed."""
        return SEAL_NBYTES if self.key else 0

    def seal(self, data: bytes, sender: int, receiver: int = EVERYONE, *, is_object: bool = True) -> bytes:
        """Return the data with its seal in front."""
        return self._digest(data, sender, receiver, is_object) + data if self.key else data

    def open(self, data: memoryview, sender: int, receiver: int = EVERYONE, *, is_object: bool = True) -> memoryview:
        """Return the data without its seal.

        Args:
            data: the received bytes, with their seal.
            sender, receiver: ranks.
            is_object: whether the bytes are a pickle; otherwise they are a text.

        Raises:
            AuthenticationError: the sender did not send these bytes to the receiver as this object.
        """
        if not self.key:
            return data
        sealed, opened = bytes(data[:SEAL_NBYTES]), data[SEAL_NBYTES:]
        if not hmac.compare_digest(sealed, self._digest(opened, sender, receiver, is_object)):
            raise AuthenticationError(
                f"{len(data)} bytes received as an object of rank {sender} are not what that rank sent; nothing was "
                "unpickled; another process may be writing to a connection of the library"
            )
        return opened

    def _digest(self, data: bytes | memoryview, sender: int, receiver: int, is_object: bool) -> bytes:
        header = _HEADER.pack(self.communicator, self.tag, self.number, sender, receiver, is_object)
        hashed = hmac.new(self.key, header + hashlib.sha256(self.backend.encode()).digest(), hashlib.sha256)
        hashed.update(data)
        return hashed.digest()


class ObjectSeals:
    """Numbers the objects of one communicator, so that each seal is valid for one object only.

    Args:
        key: key of the job.
        communicator: key of the communicator.
    """

    def __init__(self, key: bytes, communicator: int) -> None:
        self._key = key
        self._communicator = communicator
        self._num_collectives = 0
        self._sent: Counter[tuple[str, int, int]] = Counter()  # by library, receiver and tag
        self._received: Counter[tuple[str, int, int]] = Counter()  # by library, sender and tag

    def for_collective(self, is_sealed: bool) -> Sealer:
        """Return the sealer of the next collective operation; called by all members in the same order."""
        self._num_collectives += 1
        return self._sealer(is_sealed, self._num_collectives)

    def for_sending(self, is_sealed: bool, backend: str, dst: int, tag: int) -> Sealer:
        """Return the sealer of the next message to a rank over a library."""
        self._sent[backend, dst, tag] += 1
        return self._sealer(is_sealed, self._sent[backend, dst, tag], tag, backend)

    def for_receiving(self, is_sealed: bool, backend: str, src: int, tag: int) -> Sealer:
        """Return the sealer of the next message from a rank over a library."""
        self._received[backend, src, tag] += 1
        return self._sealer(is_sealed, self._received[backend, src, tag], tag, backend)

    def _sealer(self, is_sealed: bool, number: int, tag: int = _COLLECTIVE, backend: str = "") -> Sealer:
        return Sealer(self._key if is_sealed else b"", self._communicator, number, tag, backend)
