"""How two processes of a job that share a secret prove it to each other, and seal what they say afterwards.

Nothing that a stranger sends is parsed but for numbers of a fixed length at fixed places. The server speaks first:

    server   magic 6, version 2 | id of its key 16 | digest of its job 16 | nonce 32 | 1 if TLS follows, plus 2 if all
             ranks of the job have come
    rank     nonce 32 | role 1 | rank 4 | proof 32
    server   proof 32
    both     length 4 | seal 32 | message

A proof is an HMAC-SHA256 of the greeting, the role and the rank, by a key derived from the secret, the job and both
nonces; the seal is one of the message and its number in its direction. So a proof or a message that was recorded is
worth nothing later, and nobody in between can change, drop or repeat a message unseen. He can read them, unless TLS
is asked for; what is said is never secret.

Everything here is bytes in, bytes out: sockets are the affair of `hocket.boot.control` and `control_server`.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from hocket.boot.secret import Secret

MOST_NBYTES = 1 << 20
"""Of a message from a rank. One to a rank may hold a message of every rank."""

REMEDY = "~/.config/hocket/secret from the host of rank 0, or set HOCKET_SECRET to one text on all hosts"

_MAGIC = b"hocket"
_VERSION = 3
_GREETING = struct.Struct(">6sH16s16s32sB")
_TLS_FOLLOWS, _IS_COMPLETE = 1, 2
_ANSWER = struct.Struct(">32sBI")
_PROOF_NBYTES = 32
_HEADER = struct.Struct(">I32s")


class ProtocolError(Exception):
    """The other side says what no process of this job says."""


class TlsFailure(ProtocolError):
    """The other side does not speak TLS, or not with the certificate that it should have."""


class WrongServer(ProtocolError):
    """It is a server of hocket's, but not the one that is looked for.

    Args:
        why: for a message.
        is_of_job: whether it is one of a job of this name all the same, so that looking further is of no use.
    """

    def __init__(self, why: str, *, is_of_job: bool = False) -> None:
        super().__init__(why)
        self.is_of_job = is_of_job


class Role(enum.IntEnum):
    """What a connection is for."""

    CONTROL = 0
    PMI = 1  # lines of an MPI library that starts


class Tls(Protocol):
    """Transport layer security of one connection (`hocket.boot.tls`), as bytes in and bytes out."""

    def open(self, data: bytes) -> bytes: ...
    def close_over(self, data: bytes) -> bytes: ...
    def take_outgoing(self) -> bytes: ...


@dataclass(frozen=True)
class Greeting:
    """The first words of a server, which anyone may hear."""

    key_id: bytes
    job: bytes
    nonce: bytes
    has_tls: bool
    is_complete: bool = False

    def pack(self) -> bytes:
        flags = _TLS_FOLLOWS * self.has_tls | _IS_COMPLETE * self.is_complete
        return _GREETING.pack(_MAGIC, _VERSION, self.key_id, self.job, self.nonce, flags)

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        magic, version, key_id, job, nonce, flags = _GREETING.unpack(data)
        if magic != _MAGIC or flags > (_TLS_FOLLOWS | _IS_COMPLETE):
            raise ProtocolError("no server of hocket's listens there")
        if version != _VERSION:
            raise WrongServer(f"it speaks version {version} of hocket's control protocol, and this rank {_VERSION}")
        return cls(key_id, job, nonce, bool(flags & _TLS_FOLLOWS), bool(flags & _IS_COMPLETE))


class _Sealed:
    """Messages of one direction each way, after both sides have proven who they are."""

    def __init__(self, session: bytes, *, is_server: bool, most_nbytes: int) -> None:
        to_server = hmac.digest(session, b"to server", "sha256")
        to_rank = hmac.digest(session, b"to rank", "sha256")
        self._own, self._others = (to_rank, to_server) if is_server else (to_server, to_rank)
        self._num_sealed = 0
        self._num_opened = 0
        self._most_nbytes = most_nbytes

    def seal(self, message: bytes) -> bytes:
        seal = hmac.digest(self._own, self._num_sealed.to_bytes(8, "big") + message, "sha256")
        self._num_sealed += 1
        return _HEADER.pack(len(message), seal) + message

    def take_from(self, pending: bytearray) -> bytes | None:
        """Remove the first message from what has come; None if it is not complete."""
        if len(pending) < _HEADER.size:
            return None
        nbytes, seal = _HEADER.unpack_from(pending)
        if nbytes > self._most_nbytes:
            raise ProtocolError(f"a message of {nbytes} bytes was announced, and {self._most_nbytes} is the most")
        end = _HEADER.size + nbytes
        if len(pending) < end:
            return None
        message = bytes(pending[_HEADER.size : end])
        expected = hmac.digest(self._others, self._num_opened.to_bytes(8, "big") + message, "sha256")
        if not hmac.compare_digest(seal, expected):
            raise ProtocolError("a message is not as it was sent")
        self._num_opened += 1
        del pending[:end]
        return message


class End(ABC):
    """What both ends of a connection share."""

    def __init__(self, secret: Secret, job: str, tls: Tls | None) -> None:
        self.outgoing = bytearray()  # for the socket
        self._secret = secret
        self._job = job
        self._tls = tls
        self._is_tls_on = False
        self._pending = bytearray()
        self._sealed: _Sealed | None = None
        self._is_ended = False

    @property
    def is_proven(self) -> bool:
        """Whether the other side has proven that it has the secret."""
        return self._sealed is not None

    def send(self, message: bytes) -> None:
        """Put a message to what is going out; only after the proofs."""
        assert self._sealed is not None
        self._put(self._sealed.seal(message))

    def take_in(self, data: bytes) -> list[bytes]:
        """Take what came from the socket and return the messages that are complete.

        Raises:
            ProtocolError: the other side does not belong to this job; nothing it sends is looked at any more.
        """
        if self._is_ended:
            raise ProtocolError("the connection has ended")
        try:
            return self._take_in(data)
        except ProtocolError:
            self._is_ended = True
            self._pending.clear()
            raise

    def _take_in(self, data: bytes) -> list[bytes]:
        if self._is_tls_on:
            assert self._tls is not None
            data = self._tls.open(data)
            self.outgoing += self._tls.take_outgoing()
        self._pending += data
        messages: list[bytes] = []
        while True:
            if self._sealed is not None:
                message = self._sealed.take_from(self._pending)
                if message is None:
                    return messages
                messages.append(message)
            elif not self._continue():
                return messages

    @abstractmethod
    def _continue(self) -> bool:
        """Go on with the proofs; False where more has to come first."""

    def _take(self, nbytes: int) -> bytes | None:
        if len(self._pending) < nbytes:
            return None
        taken = bytes(self._pending[:nbytes])
        del self._pending[:nbytes]
        return taken

    def _put(self, data: bytes) -> None:
        if self._is_tls_on:
            assert self._tls is not None
            data = self._tls.close_over(data)
        self.outgoing += data

    def _start_tls(self) -> None:
        """From here on everything is encrypted; what came already belongs to it."""
        assert self._tls is not None
        self._is_tls_on = True
        came, self._pending = bytes(self._pending), bytearray()
        self._pending += self._tls.open(came)
        self.outgoing += self._tls.take_outgoing()

    def _proof(self, session: bytes, side: bytes, greeting: Greeting, place: bytes) -> bytes:
        return hmac.digest(session, side + place + greeting.pack(), "sha256")

    def _session(self, greeting: Greeting, nonce: bytes) -> bytes:
        return self._secret.derive(b"hocket session", self._job.encode(), greeting.nonce, nonce)


class ServerEnd(End):
    """The server's end.

    Args:
        secret: of the user.
        job: name of the job, with how many times it was restarted.
        tls: of this connection, where it is asked for.
        is_complete: whether all ranks of the job have come: who looks for a server of that name looks for another one.
    """

    def __init__(self, secret: Secret, job: str, tls: Tls | None = None, *, is_complete: bool = False) -> None:
        super().__init__(secret, job, tls)
        self.role = Role.CONTROL
        self.rank = -1  # until it is proven
        digest = job_digest(job)
        self._greeting = Greeting(secret.key_id(digest), digest, os.urandom(32), tls is not None, is_complete)
        self._put(self._greeting.pack())
        self._greets_first = tls is not None

    def _continue(self) -> bool:
        if self._greets_first:
            self._greets_first = False
            self._start_tls()
        answer = self._take(_ANSWER.size + _PROOF_NBYTES)
        if answer is None:
            return False
        place, proof = answer[: _ANSWER.size], answer[_ANSWER.size :]
        nonce, role, rank = _ANSWER.unpack(place)
        session = self._session(self._greeting, nonce)
        if not hmac.compare_digest(proof, self._proof(session, b"rank", self._greeting, place)):
            raise ProtocolError("a proof is wrong")
        if role not in tuple(Role):
            raise ProtocolError(f"unknown connection role {role}")
        self.role, self.rank = Role(role), rank
        self._put(self._proof(session, b"server", self._greeting, place))
        self._sealed = _Sealed(session, is_server=True, most_nbytes=MOST_NBYTES)
        return True


class RankEnd(End):
    """A rank's end.

    Args:
        secret: of the user.
        job: name of the job, with how many times it was restarted.
        size: ranks of the job.
        rank: of this process.
        role: of the connection.
        tls: of this connection, where it is asked for.
    """

    def __init__(
        self, secret: Secret, job: str, size: int, rank: int, role: Role = Role.CONTROL, tls: Tls | None = None
    ) -> None:
        super().__init__(secret, job, tls)
        self._size = size
        self._greeting: Greeting | None = None
        self._session_key = b""
        self._place = _ANSWER.pack(os.urandom(32), role, rank)

    @property
    def is_greeted(self) -> bool:
        """Whether it is a server of this job, by what it says."""
        return self._greeting is not None

    def _take_in(self, data: bytes) -> list[bytes]:
        try:
            return super()._take_in(data)
        except TlsFailure as error:
            raise WrongServer(f"{error}; it must be the same on all hosts (HOCKET_TLS_CERT)", is_of_job=True) from error

    def _continue(self) -> bool:
        if self._greeting is None:
            return self._answer()
        proof = self._take(_PROOF_NBYTES)
        if proof is None:
            return False
        expected = self._proof(self._session_key, b"server", self._greeting, self._place)
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError("the server does not have the secret of this job")
        # a message to a rank may hold one of every rank
        self._sealed = _Sealed(self._session_key, is_server=False, most_nbytes=(MOST_NBYTES + 1024) * self._size)
        return True

    def _answer(self) -> bool:
        packed = self._take(_GREETING.size)
        if packed is None:
            return False
        greeting = Greeting.unpack(packed)
        if greeting.job != job_digest(self._job):
            raise WrongServer("it is the server of another job")
        own_id = self._secret.key_id(greeting.job)
        if greeting.key_id != own_id:
            ids = greeting.key_id[:4].hex(), own_id[:4].hex()
            raise WrongServer(
                f"rank 0 has another secret (key id {ids[0]}) than this host has in {self._secret.origin} (key id "
                f"{ids[1]}): copy {REMEDY}",
                is_of_job=True,
            )
        if greeting.has_tls != (self._tls is not None):
            has, lacks = ("rank 0", "this rank") if greeting.has_tls else ("this rank", "rank 0")
            raise WrongServer(
                f"{has} has HOCKET_TLS_CERT, and {lacks} has not: set it on all hosts, or on none", is_of_job=True
            )
        if greeting.is_complete and self._place[32] == Role.CONTROL:
            raise WrongServer(
                "all ranks of the job that it serves have come: it may be an earlier one of the same MASTER_ADDR and "
                "MASTER_PORT that is not over"
            )
        self._greeting = greeting
        if self._tls is not None:
            self._start_tls()
        self._session_key = self._session(greeting, self._place[:32])
        self._put(self._place + self._proof(self._session_key, b"rank", greeting, self._place))
        return True


def job_digest(job: str) -> bytes:
    """Name a job to those who know its name; what it is made of (address, port, restarts) is no secret."""
    return hashlib.sha256(b"hocket job\0" + job.encode()).digest()[:16]
