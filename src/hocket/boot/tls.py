"""TLS for control connections, where $HOCKET_TLS_CERT asks for it: then nobody can read what the ranks tell each other.

The certificate is one that the user or ``openssl`` made; it is the only one that is accepted, whatever name is in it::

    openssl req -x509 -newkey ed25519 -nodes -days 365 -subj /CN=hocket -keyout key.pem -out cert.pem
    export HOCKET_TLS_CERT=cert.pem HOCKET_TLS_KEY=key.pem     # the key on the host of rank 0 alone
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from hocket.boot.sealed import ProtocolError
from hocket.errors import BootstrapMismatch

_READ_NBYTES = 1 << 16


@dataclass(frozen=True)
class TlsFiles:
    """What is asked for.

    Args:
        certificate: path of the certificate, in PEM.
        key: path of its private key, in PEM; only the server needs it.
    """

    certificate: str
    key: str | None

    def server_side(self) -> TlsStream:
        """Begin a connection as the server; BootstrapMismatch where a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(
                f"HOCKET_TLS_CERT={self.certificate!r}, HOCKET_TLS_KEY={self.key!r}: no certificate with its key in "
                f"PEM: {error}"
            ) from error
        return TlsStream(context, is_server=True)

    def rank_side(self) -> TlsStream:
        """Begin a connection as a rank; BootstrapMismatch where the file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # one certificate, whatever hosts a job runs on
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(f"HOCKET_TLS_CERT={self.certificate!r}: no certificate in PEM: {error}") from error
        return TlsStream(context, is_server=False)


class TlsStream:
    """TLS of one connection, without a socket."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._stream = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._is_up = False
        self._held = bytearray()  # what is to be sent once it is up

    def open(self, data: bytes) -> bytes:
        """Take what came from the socket and return what it says.

        Raises:
            ProtocolError: it is not TLS, or not with our certificate.
        """
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._is_up:
                self._stream.do_handshake()
                self._is_up = True
                self._stream.write(self._held) if self._held else None
                self._held.clear()
            while chunk := self._stream.read(_READ_NBYTES):
                said += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ProtocolError(f"TLS failed: {error.reason or error}") from error
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
