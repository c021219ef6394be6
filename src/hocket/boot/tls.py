"""TLS for control connections, enabled by HOCKET_TLS_CERT: then others cannot read the messages of the ranks.

The user creates the certificate, for example with ``openssl``. The first certificate in the file is the only one that
is accepted, with any name in it::

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
    """The files that enable TLS.

    Args:
        certificate: path of the certificate, in PEM.
        key: path of its private key, in PEM; only the server needs it.
    """

    certificate: str
    key: str | None

    def server_side(self) -> TlsServer:
        """Read the files; raise BootstrapMismatch if one is unusable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, self._refuse_to_ask)
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(
                f"{self._names()}: the files must be a certificate and its key in PEM: {error}"
            ) from error
        return TlsServer(context)

    def _names(self) -> str:
        return f"HOCKET_TLS_CERT={self.certificate!r}, HOCKET_TLS_KEY={self.key!r}"

    def _refuse_to_ask(self) -> NoReturn:
        """Refuse an encrypted key: nobody could type its pass phrase."""
        raise BootstrapMismatch(f"{self._names()}: the key must not be encrypted; openssl pkey -in KEY -out PLAIN_KEY")

    def rank_side(self) -> TlsStream:
        """Start TLS of a connection as a rank; raise BootstrapMismatch if the file is unusable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # one certificate for all hosts of a job
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
            first = _FIRST.search(Path(self.certificate).read_text(errors="replace"))
            expected = ssl.PEM_cert_to_DER_cert(first[0] if first else "")
        except (OSError, ValueError) as error:
            raise BootstrapMismatch(
                f"HOCKET_TLS_CERT={self.certificate!r} must be a certificate in PEM: {error}"
            ) from error
        return TlsStream(context, expected)


class TlsServer:
    """TLS of all connections of a server."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def begin(self) -> TlsStream:
        """Start TLS of a connection."""
        return TlsStream(self._context, None)


class TlsStream:
    """TLS of one connection, without a socket.

    Args:
        context: TLS context of this side.
        expected: certificate of the server (DER); None: this side is the server. Certificates signed by it are not
            accepted.
    """

    def __init__(self, context: ssl.SSLContext, expected: bytes | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._stream = context.wrap_bio(self._incoming, self._outgoing, server_side=expected is None)
        self._expected = expected
        self._is_up = False
        self._held = bytearray()  # bytes to send after the handshake

    def open(self, data: bytes) -> bytes:
        """Decrypt received bytes.

        Raises:
            TlsFailure: the bytes are not TLS, or the certificate is wrong.
        """
        self._incoming.write(data)
        decrypted = bytearray()
        try:
            if not self._is_up:
                self._stream.do_handshake()
                if self._expected is not None and self._stream.getpeercert(True) != self._expected:
                    raise TlsFailure("TLS failed: the server's certificate is not the first one in HOCKET_TLS_CERT")
                self._is_up = True
                self._stream.write(self._held) if self._held else None
                self._held.clear()
            while chunk := self._stream.read(_READ_NBYTES):
                decrypted += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsFailure(f"TLS failed: {getattr(error, 'verify_message', '') or error.reason or error}") from error
        return bytes(decrypted)

    def close_over(self, data: bytes) -> bytes:
        """Encrypt bytes to send."""
        if self._is_up:
            self._stream.write(data)
        else:
            self._held += data
        return self.take_outgoing()

    def take_outgoing(self) -> bytes:
        """Return the encrypted bytes to send."""
        return self._outgoing.read()
