"""The protocol of control connections: both ends prove that they have the job's secret, then seal each message.

Of unauthenticated data, only fields of fixed size at fixed offsets are read. The server sends first:

    server   magic 6, version 2 | id of its key 16 | digest of its job 16 | nonce 32 | 1 if TLS follows, plus 2 if all
             ranks of the job have joined
    rank     nonce 32 | role 1 | rank 4 | proof 32
    server   proof 32
    both     length 4 | seal 32 | message

A proof is an HMAC-SHA256 of the greeting, the role and the rank, under a key derived from the secret, the job and both
nonces; a seal is an HMAC-SHA256 of the message and its number in its direction. So recorded proofs and messages cannot
be replayed, and nobody can change, drop or repeat a message unnoticed. Without TLS, others can read messages; none has
a secret.

This file only turns bytes into bytes; `hocket.boot.control` and `control_server` have the sockets.
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
"""Most bytes of a message from a rank. A message to a rank may contain a message of every rank."""

REMEDY = "~/.config/hocket/secret from the host of rank 0, or set HOCKET_SECRET to the same text on all hosts"

_MAGIC = b"hocket"
_VERSION = 3
_GREETING = struct.Struct(">6sH16s16s32sB")
_TLS_FOLLOWS, _IS_COMPLETE = 1, 2
_ANSWER = struct.Struct(">32sBI")
_PROOF_NBYTES = 32
_HEADER = struct.Struct(">I32s")


class ProtocolError(Exception):
    """The other side sent something that no process of this job sends."""


class TlsFailure(ProtocolError):
    """The other side does not use TLS, or has a wrong certificate."""


class WrongServer(ProtocolError):
    """The server is a hocket server, but not that of this job.

    Args:
        why: text for a message.
        is_of_job: whether it serves a job of this name nevertheless, so that a further search would not help.
    """

    def __init__(self, why: str, *, is_of_job: bool = False) -> None:
        super().__init__(why)
        self.is_of_job = is_of_job


class Role(enum.IntEnum):
    """Purpose of a connection."""

    CONTROL = 0
    PMI = 1  # lines of an MPI library during its start


class Tls(Protocol):
    """TLS of one connection (`hocket.boot.tls`), without a socket."""

    def open(self, data: bytes) -> bytes: ...
    def close_over(self, data: bytes) -> bytes: ...
    def take_outgoing(self) -> bytes: ...


@dataclass(frozen=True)
class Greeting:
    """The first message of a server; anyone can read it."""

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
            raise ProtocolError("the server there is not a hocket server")
        if version != _VERSION:
            raise WrongServer(
                f"the server has version {version} of hocket's control protocol, this rank has {_VERSION}"
            )
        return cls(key_id, job, nonce, bool(flags & _TLS_FOLLOWS), bool(flags & _IS_COMPLETE))


class _Sealed:
    """Seals and opens messages after authentication, in both directions."""

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
        """Remove and return the first message of the received bytes; None if it is incomplete."""
        if len(pending) < _HEADER.size:
            return None
        nbytes, seal = _HEADER.unpack_from(pending)
        if nbytes > self._most_nbytes:
            raise ProtocolError(
                f"a message of {nbytes} bytes was announced, but at most {self._most_nbytes} are allowed"
            )
        end = _HEADER.size + nbytes
        if len(pending) < end:
            return None
        message = bytes(pending[_HEADER.size : end])
        expected = hmac.digest(self._others, self._num_opened.to_bytes(8, "big") + message, "sha256")
        if not hmac.compare_digest(seal, expected):
            raise ProtocolError("the seal of a message is wrong")
        self._num_opened += 1
        del pending[:end]
        return message


class End(ABC):
    """One end of a connection: the parts that server and rank share."""

    def __init__(self, secret: Secret, job: str, tls: Tls | None) -> None:
        self.outgoing = bytearray()  # bytes to send
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
        """Queue a message; only after authentication."""
        assert self._sealed is not None
        self._put(self._sealed.seal(message))

    def take_in(self, data: bytes) -> list[bytes]:
        """Handle received bytes and return the complete messages.

        Raises:
            ProtocolError: the other side does not belong to this job; later data is ignored.
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
        """Continue the authentication; return False if more data is needed."""

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
        """Encrypt from here on; data that was already received is decrypted, too."""
        assert self._tls is not None
        self._is_tls_on = True
        received, self._pending = bytes(self._pending), bytearray()
        self._pending += self._tls.open(received)
        self.outgoing += self._tls.take_outgoing()

    def _proof(self, session: bytes, side: bytes, greeting: Greeting, place: bytes) -> bytes:
        return hmac.digest(session, side + place + greeting.pack(), "sha256")

    def _session(self, greeting: Greeting, nonce: bytes) -> bytes:
        return self._secret.derive(b"hocket session", self._job.encode(), greeting.nonce, nonce)


class ServerEnd(End):
    """The server's end.

    Args:
        secret: secret of the user.
        job: name of the job, with the number of its restarts.
        tls: TLS of this connection if enabled.
        is_complete: whether all ranks of the job have joined: then a new rank with that job name needs another server.
    """

    def __init__(self, secret: Secret, job: str, tls: Tls | None = None, *, is_complete: bool = False) -> None:
        super().__init__(secret, job, tls)
        self.role = Role.CONTROL
        self.rank = -1  # until authentication
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
            raise ProtocolError("the proof of a rank is wrong")
        if role not in tuple(Role):
            raise ProtocolError(f"unknown connection role {role}")
        self.role, self.rank = Role(role), rank
        self._put(self._proof(session, b"server", self._greeting, place))
        self._sealed = _Sealed(session, is_server=True, most_nbytes=MOST_NBYTES)
        return True


class RankEnd(End):
    """A rank's end.

    Args:
        secret: secret of the user.
        job: name of the job, with the number of its restarts.
        size: number of ranks of the job.
        rank: rank of this process.
        role: role of the connection.
        tls: TLS of this connection if enabled.
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
        """Whether the server has sent a greeting of this job; not yet proven."""
        return self._greeting is not None

    def _take_in(self, data: bytes) -> list[bytes]:
        try:
            return super()._take_in(data)
        except TlsFailure as error:
            raise WrongServer(
                f"{error}; the certificate must be equal on all hosts (HOCKET_TLS_CERT)", is_of_job=True
            ) from error

    def _continue(self) -> bool:
        if self._greeting is None:
            return self._answer()
        proof = self._take(_PROOF_NBYTES)
        if proof is None:
            return False
        expected = self._proof(self._session_key, b"server", self._greeting, self._place)
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError("the server does not have the secret of this job")
        # a message to a rank may contain a message of every rank
        self._sealed = _Sealed(self._session_key, is_server=False, most_nbytes=(MOST_NBYTES + 1024) * self._size)
        return True

    def _answer(self) -> bool:
        packed = self._take(_GREETING.size)
        if packed is None:
            return False
        greeting = Greeting.unpack(packed)
        if greeting.job != job_digest(self._job):
            raise WrongServer("the server there serves another job")
        own_id = self._secret.key_id(greeting.job)
        if greeting.key_id != own_id:
            ids = greeting.key_id[:4].hex(), own_id[:4].hex()
            raise WrongServer(
                f"rank 0 has another secret (key id {ids[0]}) than this host in {self._secret.origin} (key id "
                f"{ids[1]}): copy {REMEDY}",
                is_of_job=True,
            )
        if greeting.has_tls != (self._tls is not None):
            has, lacks = ("rank 0", "this rank") if greeting.has_tls else ("this rank", "rank 0")
            raise WrongServer(
                f"{has} has HOCKET_TLS_CERT, but {lacks} does not: set it on all hosts or on none", is_of_job=True
            )
        if greeting.is_complete and self._place[32] == Role.CONTROL:
            raise WrongServer(
                "all ranks of its job have joined: it may be an earlier job with the same MASTER_ADDR and MASTER_PORT "
                "that still runs"
            )
        self._greeting = greeting
        if self._tls is not None:
            self._start_tls()
        self._session_key = self._session(greeting, self._place[:32])
        self._put(self._place + self._proof(self._session_key, b"rank", greeting, self._place))
        return True


def job_digest(job: str) -> bytes:
    """Return an identifier of a job; the name in it (address, port, restarts) is not secret."""
    return hashlib.sha256(b"hocket job\0" + job.encode()).digest()[:16]
