"""Seals on the bytes of objects: libraries that carry them ask nobody who he is, and unpickling runs what is in them.

A seal is an HMAC-SHA256 (RFC 2104), by a key that only the ranks of the job have, of the communicator, the operation's
number, sender, receiver and all bytes. So an object that a rank of this job did not send, or sent at another time, is
never unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import Counter
from dataclasses import dataclass

from hocket.errors import AuthenticationError

SEAL_NBYTES = 32
EVERYONE = -1
_HEADER = struct.Struct(">Qqqqq")
_COLLECTIVE = -1  # in the place of a message's tag


@dataclass(frozen=True)
class Sealer:
    """Seals the objects of one operation.

    Args:
        key: of the job; empty: nothing is sealed, as only shared memory carries it.
        communicator: its key.
        tag: of a message.
        number: how many operations of this kind came before on the communicator, or messages between the two ranks.
    """

    key: bytes
    communicator: int
    number: int
    tag: int = _COLLECTIVE

    @property
    def nbytes(self) -> int:
        """By which a seal makes an object longer."""
        return SEAL_NBYTES if self.key else 0

    def seal(self, data: bytes, sender: int, receiver: int = EVERYONE) -> bytes:
        """Return the data with its seal in front."""
        return self._digest(data, sender, receiver) + data if self.key else data

    def open(self, data: memoryview, sender: int, receiver: int = EVERYONE) -> memoryview:
        """Return the data without its seal.

        Raises:
            AuthenticationError: that rank did not send it, as this object, to this one.
        """
        if not self.key:
            return data
        sealed, opened = bytes(data[:SEAL_NBYTES]), data[SEAL_NBYTES:]
        if not hmac.compare_digest(sealed, self._digest(opened, sender, receiver)):
            raise AuthenticationError(
                f"{len(data)} bytes that came as an object of rank {sender} are not what it sent: nothing was "
                "unpickled; someone else writes to a connection of the library that carries them"
            )
        return opened

    def _digest(self, data: bytes | memoryview, sender: int, receiver: int) -> bytes:
        header = _HEADER.pack(self.communicator, self.tag, self.number, sender, receiver)
        hashed = hmac.new(self.key, header, hashlib.sha256)
        hashed.update(data)
        return hashed.digest()


class ObjectSeals:
    """Numbers the objects of one communicator, so that each seal counts for one of them.

    Args:
        key: of the job.
        communicator: its key.
    """

    def __init__(self, key: bytes, communicator: int) -> None:
        self._key = key
        self._communicator = communicator
        self._num_collectives = 0
        self._sent: Counter[tuple[int, int]] = Counter()  # by receiver and tag
        self._received: Counter[tuple[int, int]] = Counter()  # by sender and tag

    def for_collective(self, is_sealed: bool) -> Sealer:
        """Begin a collective operation; called by all members in the same order."""
        self._num_collectives += 1
        return self._sealer(is_sealed, self._num_collectives)

    def for_sending(self, is_sealed: bool, dst: int, tag: int) -> Sealer:
        """Begin to send a message."""
        self._sent[dst, tag] += 1
        return self._sealer(is_sealed, self._sent[dst, tag], tag)

    def for_receiving(self, is_sealed: bool, src: int, tag: int) -> Sealer:
        """Begin to receive a message."""
        self._received[src, tag] += 1
        return self._sealer(is_sealed, self._received[src, tag], tag)

    def _sealer(self, is_sealed: bool, number: int, tag: int = _COLLECTIVE) -> Sealer:
        return Sealer(self._key if is_sealed else b"", self._communicator, number, tag)
