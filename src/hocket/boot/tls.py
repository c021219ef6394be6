"""TLS for control connections, where $HOCKET_TLS_CERT asks for it: then nobody can read what the ranks tell each other.

The certificate is one that the user or ``openssl`` made, the first one in the file; it is the only one that is
accepted, whatever name is in it::

    openssl req -x509 -newkey ed25519 -nodes -days 365 -subj /CN=hocket -keyout key.pem -out cert.pem
    export HOCKET_TLS_CERT=cert.pem HOCKET_TLS_KEY=key.pem     # the key on the host of rank 0 alone
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hocket.boot.sealed import TlsFailure
from hocket.errors import BootstrapMismatch

_READ_NBYTES = 1 << 16
_FIRST = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class TlsFiles:
    """What is asked for.

    Args:
        certificate: path of the certificate, in PEM.
        key: path of its private key, in PEM; only the server needs it.
    """

    certificate: str
    key: str | None

    def server_side(self) -> TlsServer:
        """Read the files; BootstrapMismatch where one cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, self._refuse_to_ask)
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(f"{self._names()}: no certificate with its key in PEM: {error}") from error
        return TlsServer(context)

    def _names(self) -> str:
        return f"HOCKET_TLS_CERT={self.certificate!r}, HOCKET_TLS_KEY={self.key!r}"

    def _refuse_to_ask(self) -> NoReturn:
        """Nobody is there to type the pass phrase of a key."""
        raise BootstrapMismatch(f"{self._names()}: the key must not be encrypted; openssl pkey -in KEY -out PLAIN_KEY")

    def rank_side(self) -> TlsStream:
        """Begin a connection as a rank; BootstrapMismatch where the file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # one certificate, whatever hosts a job runs on
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
            first = _FIRST.search(Path(self.certificate).read_text(errors="replace"))
            expected = ssl.PEM_cert_to_DER_cert(first[0] if first else "")
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(f"HOCKET_TLS_CERT={self.certificate!r}: no certificate in PEM: {error}") from error
        return TlsStream(context, expected)


class TlsServer:
    """TLS of all connections of a server."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def begin(self) -> TlsStream:
        """Begin a connection."""
        return TlsStream(self._context, None)


class TlsStream:
    """TLS of one connection, without a socket.

    Args:
        context: what it is made of.
        expected: the certificate of the server (DER); None: this side is the server. Other certificates that those in
            the file have signed are not accepted.
    """

    def __init__(self, context: ssl.SSLContext, expected: bytes | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._stream = context.wrap_bio(self._incoming, self._outgoing, server_side=expected is None)
        self._expected = expected
        self._is_up = False
        self._held = bytearray()  # what is to be sent once it is up

    def open(self, data: bytes) -> bytes:
        """Take what came from the socket and return what it says.

        Raises:
            TlsFailure: it is not TLS, or not with our certificate.
        """
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._is_up:
                self._stream.do_handshake()
                if self._expected is not None and self._stream.getpeercert(True) != self._expected:
                    raise TlsFailure("TLS failed: it has another certificate than the first one in HOCKET_TLS_CERT")
                self._is_up = True
                self._stream.write(self._held) if self._held else None
                self._held.clear()
            while chunk := self._stream.read(_READ_NBYTES):
                said += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsFailure(f"TLS failed: {getattr(error, 'verify_message', '') or error.reason or error}") from error
        return bytes(said)

    def close_over(self, data: bytes) -> bytes:
        """Encrypt what is to be sent."""
        if self._is_up:
            self._stream.write(data)
        else:
            self._held += data
        return self.take_outgoing()

    def take_outgoing(self) -> bytes:
        """Return what has to go to the socket."""
        return self._outgoing.read()
