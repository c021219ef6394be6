"""The messages between a rank and a parameter server: a head of fixed size with a proof, then the elements.

A head proves that its sender has the key of these servers, which only the ranks of the job get: HMAC-SHA256 (RFC 2104)
of the head's other fields, and of what follows, unless that is elements. A server takes the elements of a parcel from a
rank once in each step, and newer settings only, so that a message that somebody recorded changes nothing when it comes
again. Elements are sent as they are, as by the other libraries that carry tensors: without encryption or a proof.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

_MAGIC = b"hkps"
_VERSION = 2
_FIELDS = struct.Struct("<4sHBxIIQQ")
"""Magic, version, kind, rank, parcel, step, number of bytes that follow."""
_PROOF_NBYTES = 32
HEAD_NBYTES = _FIELDS.size + _PROOF_NBYTES
KEY_NBYTES = 32
_STATE_NBYTES = 1 << 16
"""Most bytes of state in a message that has more of them than its parcel; `ServerClient` lets messages be so long."""
Content = bytes | memoryview
"""What follows a head."""


class BadMessage(Exception):
    """Bytes that no rank and no server of this job sends."""


class MessageKind(IntEnum):
    """What a message is."""

    GRADIENTS = 0
    """To a server: the elements of a parcel."""
    VALUES = 1
    """From a server: sums of gradients, or values of parameters."""
    WHO_IS_LATE = 2
    """To a server: whose elements of a parcel it lacks."""
    LATE = 3
    """From a server: the ranks, four bytes each."""
    SETTINGS = 4
    """To a server: settings of the optimizer, as JSON."""
    LEAVE = 5
    """To a server: the rank sends no more gradients."""
    PULL = 6
    """To a server: it asks for the parameters of a parcel."""
    ARRIVED = 7
    """To a server: the elements of another rank's parcel have come into its memory by a library; the head's rank is
    that rank."""
    DONE = 8
    """From a server: it has taken them."""
    STATE = 9
    """To a server: it asks for a part of the optimizer's state of a parcel; the head's step is the part's number."""
    STATE_PART = 10
    """From a server: that part."""

    @property
    def answer(self) -> MessageKind:
        """The kind of the answer to such a call."""
        return {
            MessageKind.GRADIENTS: MessageKind.VALUES,
            MessageKind.PULL: MessageKind.VALUES,
            MessageKind.ARRIVED: MessageKind.VALUES,
            MessageKind.WHO_IS_LATE: MessageKind.LATE,
            MessageKind.STATE: MessageKind.STATE_PART,
        }.get(self, MessageKind.DONE)


@dataclass(frozen=True)
class MessageHead:
    """The head of a message.

    Args:
        kind: what follows.
        rank: the rank that asks; 0 in an answer, which is the same for all ranks.
        parcel: number of the parcel, in `parcels_of`.
        step: number of the step whose gradients these are; in an answer, of the values.
        nbytes: number of bytes that follow.
    """

    kind: MessageKind
    rank: int
    parcel: int
    step: int
    nbytes: int

    def pack(self, key: bytes, content: Content = b"") -> bytes:
        """Return its bytes.

        Args:
            key: key of the direction.
            content: what follows; only messages without elements need it.
        """
        fields = _FIELDS.pack(_MAGIC, _VERSION, self.kind, self.rank, self.parcel, self.step, self.nbytes)
        return fields + _proof(key, self.kind, fields, content)

    @classmethod
    def unpack(cls, message: bytes, key: bytes) -> MessageHead:
        """Return the head of a received message.

        Raises:
            BadMessage: it is too short, has another length than it says, or its sender does not have the key.
        """
        if len(message) < HEAD_NBYTES:
            raise BadMessage(f"a message of {len(message)} bytes has no head")
        fields, proof = message[: _FIELDS.size], message[_FIELDS.size : HEAD_NBYTES]
        magic, version, kind, rank, parcel, step, nbytes = _FIELDS.unpack(fields)
        if not hmac.compare_digest(proof, _proof(key, kind, fields, memoryview(message)[HEAD_NBYTES:])):
            raise BadMessage("the sender of a message does not have the key of this job")
        if magic != _MAGIC or version != _VERSION:
            raise BadMessage(f"a message has version {version} of the protocol, this process {_VERSION}")
        if kind not in tuple(MessageKind) or nbytes != len(message) - HEAD_NBYTES:
            raise BadMessage(f"a message of kind {kind} says that {nbytes} bytes follow, and {len(message)} came")
        return cls(MessageKind(kind), rank, parcel, step, nbytes)


def pack_answer(key: bytes, kind: MessageKind, parcel: int, step: int, content: Content) -> bytes:
    """Return an answer, which is the same for all ranks.

    Args:
        key: key of the answers.
        kind: what it is.
        parcel, step: see `MessageHead`.
        content: what follows the head.
    """
    return b"".join((MessageHead(kind, 0, parcel, step, len(content)).pack(key, content), content))


def part_nbytes(parcel_nbytes: int) -> int:
    """Return how many bytes of state a message has, for a parcel of so many bytes."""
    return max(parcel_nbytes, _STATE_NBYTES)


def _proof(key: bytes, kind: int, fields: bytes, content: Content) -> bytes:
    is_proven = kind not in (MessageKind.GRADIENTS, MessageKind.VALUES)
    return hmac.digest(key, fields + bytes(content) if is_proven else fields, "sha256")


def key_for(key: bytes, is_answer: bool) -> bytes:
    """Return the key of one direction: a message of a rank cannot be sent back to it as an answer."""
    return hmac.digest(key, b"answers" if is_answer else b"calls", "sha256")
