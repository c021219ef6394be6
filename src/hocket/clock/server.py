"""Asks the clock of another host by datagrams. Both sides know a key, and answer or believe nothing without it."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from time import monotonic, monotonic_ns

from hocket.clock.reading import ClockReading, best_reading
from hocket.errors import CommTimeout, InvalidArgument

_MAGIC = b"HCKCLK1\0"
_NONCE_NBYTES = 16
_QUESTION = struct.Struct(f"<8s{_NONCE_NBYTES}s8x32s")
_ANSWER = struct.Struct(f"<8s{_NONCE_NBYTES}sq32s")
assert _QUESTION.size == _ANSWER.size, "a stranger gets no more bytes than it sends"
_LEAST_KEY_NBYTES = 16
_LOOK_S = 0.2
_ANSWER_S = 0.2
"""A lost datagram is not waited for longer."""
MOST_READINGS = 1024


class ClockServer:
    """Answers questions for this host's monotonic clock, in a thread.

    Args:
        key: secret that askers have, too; at least 16 bytes.
        address: to listen on; port 0: any free one.
        clock_ns: returns nanoseconds.

    Attributes:
        address: host and port that it listens on.

    Raises:
        InvalidArgument: the key is too short.
        OSError: the address cannot be used.

    Examples:
        >>> with hk.clock.ClockServer(b"sixteen bytes or more") as server:
        ...     reading = hk.clock.ask_clock(server.address, b"sixteen bytes or more")
        >>> abs(reading.ahead) <= reading.error
        True
    """

    def __init__(
        self, key: bytes, address: tuple[str, int] = ("127.0.0.1", 0), clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._key = _checked(key)
        self._clock_ns = clock_ns
        self._stops = threading.Event()
        self._socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(address)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(_LOOK_S)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._serve, name="hocket-clock", daemon=True)
        self._thread.start()

    def __enter__(self) -> ClockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering."""
        self._stops.set()
        self._thread.join(5 * _LOOK_S)
        self._socket.close()

    def _serve(self) -> None:
        while not self._stops.is_set():
            try:
                question, asker = self._socket.recvfrom(_QUESTION.size + 1)
            except TimeoutError:
                continue
            except OSError:
                continue  # an earlier answer found nobody
            if len(question) != _QUESTION.size:
                continue
            magic, nonce, seal = _QUESTION.unpack(question)
            if magic != _MAGIC or not hmac.compare_digest(seal, _seal(self._key, b"question", nonce)):
                continue
            theirs_ns = self._clock_ns()
            answer = _seal(self._key, b"answer", nonce + struct.pack("<q", theirs_ns))
            with suppress(OSError):  # the asker has left
                self._socket.sendto(_ANSWER.pack(_MAGIC, nonce, theirs_ns, answer), asker)


def ask_clock(
    address: tuple[str, int], key: bytes, *, num_readings: int = 32, timeout: float = 5.0,
    clock_ns: Callable[[], int] = monotonic_ns,
) -> ClockReading:  # fmt: skip
    """Ask a `ClockServer` several times, and return the best reading, in nanoseconds.

    Args:
        address: host and port of the server.
        key: its key.
        num_readings: how many answers to wait for; at most 1,024.
        timeout: seconds for all of them together.
        clock_ns: this host's clock.

    Raises:
        CommTimeout: no answer came in time: nobody listens there, or it has another key.
        InvalidArgument: the key is too short, or `num_readings` is out of range.
        OSError: the address is none.

    Examples:
        >>> with hk.clock.ClockServer(b"sixteen bytes or more") as server:
        ...     hk.clock.ask_clock(server.address, b"sixteen bytes or more", num_readings=4).error < 1e9
        True
    """
    _checked(key)
    if not 1 <= num_readings <= MOST_READINGS:
        raise InvalidArgument(f"num_readings must be from 1 to {MOST_READINGS}, not {num_readings}")
    deadline_s = monotonic() + timeout
    found: list[ClockReading] = []
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect(address)
        while len(found) < num_readings and (left_s := deadline_s - monotonic()) > 0:
            reading = _ask_once(asker, key, min(left_s, _ANSWER_S), clock_ns)
            if reading is not None:
                found.append(reading)
    if not found:
        raise CommTimeout(
            f"no clock answered at {address[0]}, port {address[1]}, within {timeout:g} s: nobody listens there, or it "
            "has another key"
        )
    return best_reading(found)


def _ask_once(asker: socket.socket, key: bytes, limit_s: float, clock_ns: Callable[[], int]) -> ClockReading | None:
    nonce = os.urandom(_NONCE_NBYTES)
    question = _QUESTION.pack(_MAGIC, nonce, _seal(key, b"question", nonce))
    end_s = monotonic() + limit_s
    try:
        asked = clock_ns()
        asker.send(question)
        while (left_s := end_s - monotonic()) > 0:
            asker.settimeout(left_s)
            answer = asker.recv(_ANSWER.size + 1)
            answered = clock_ns()
            theirs = _believed(answer, key, nonce)
            if theirs is not None:
                return ClockReading(asked, theirs, answered)
    except ConnectionRefusedError:
        threading.Event().wait(min(limit_s, 0.01))  # nobody listens yet
    except TimeoutError:
        pass
    return None


def _believed(answer: bytes, key: bytes, nonce: bytes) -> int | None:
    if len(answer) != _ANSWER.size:
        return None
    magic, its_nonce, theirs_ns, seal = _ANSWER.unpack(answer)
    expected = _seal(key, b"answer", nonce + struct.pack("<q", theirs_ns))
    is_ours = magic == _MAGIC and its_nonce == nonce and hmac.compare_digest(seal, expected)
    return int(theirs_ns) if is_ours else None


def _seal(key: bytes, what: bytes, content: bytes) -> bytes:
    return hmac.new(key, _MAGIC + what + content, sha256).digest()


def _checked(key: bytes) -> bytes:
    if len(key) < _LEAST_KEY_NBYTES:
        raise InvalidArgument(f"the key of a clock has at least {_LEAST_KEY_NBYTES} bytes, not {len(key)}")
    return key
