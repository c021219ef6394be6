"""Requests to the Linux kernel over netlink, and what it answers (netlink(7), rtnetlink(7), sock_diag(7)).

Packages for netlink make an object of each attribute, which takes a millisecond for a few sockets. Here a few fields of
thousands of sockets are read in every interval.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from hocket.errors import RecorderError

ROUTE, SOCKETS = 0, 4
"""Protocols: NETLINK_ROUTE and NETLINK_SOCK_DIAG."""
DUMP = 0x301
"""Flags of a request for all objects; without them it is for one."""
_REQUEST = 0x1
_ERROR, _DONE = 2, 3
_ADD_MEMBERSHIP, _SOL_NETLINK = 1, 270
_HEAD = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR_NUMBER = struct.Struct("=i")
_TYPE_MASK = 0x3FFF
_MOST_NBYTES = 1 << 20
_BUFFER_NBYTES = 4 << 20
"""For what comes without a request; the kernel gives as much as net.core.rmem_max allows."""
_ATTACH_FILTER = 26
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_U16, _EQUALS, _RETURN = 0x28, 0x15, 0x06
"""Of the classic Berkeley packet filter (kernel documentation, networking/filter)."""
_TIMEOUT_S = 2.0


class NetlinkSocket:
    """A socket to the kernel; a context manager.

    Args:
        protocol: ROUTE or SOCKETS.
        groups: numbers of groups whose messages come without a request.

    Raises:
        RecorderError: the kernel does not have the protocol or a group.
    """

    def __init__(self, protocol: int, groups: Sequence[int] = ()) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except (OSError, AttributeError) as error:
            raise RecorderError(f"the kernel has no netlink protocol {protocol}: {error}") from None
        try:
            self._socket.bind((0, 0))
            for group in groups:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError as error:
            self._socket.close()
            raise RecorderError(f"netlink protocol {protocol}: {error.strerror}") from None
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def drop_if_zero(self, offset: int) -> None:
        """Let the kernel drop what comes without a request if 16 bits of it are 0, and buffer more of the rest.

        Args:
            offset: of the 16 bits in a message, with its head of 16 bytes.

        Raises:
            RecorderError: the kernel refuses the filter.
        """
        program = b"".join(
            _INSTRUCTION.pack(*instruction)
            for instruction in (
                (_LOAD_U16, 0, 0, offset), (_EQUALS, 0, 1, 0), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFF_FFFF),
            )
        )  # fmt: skip
        buffer = ctypes.create_string_buffer(program)
        head = struct.pack("@HP", len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, head)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_NBYTES)
        except OSError as error:
            raise RecorderError(f"netlink filter: {error.strerror}") from None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(self, kind: int, content: bytes, flags: int = _REQUEST) -> Iterator[memoryview]:
        """Send a request and return the bodies of the answers.

        Raises:
            RecorderError: the kernel refuses, does not answer within 2 s, or answers more than can be held.
        """
        self._number += 1
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.send(_HEAD.pack(_HEAD.size + len(content), kind, flags, self._number, 0) + content)
            while True:
                for found, number, body in _messages(self._socket.recv(_MOST_NBYTES)):
                    if number != self._number:
                        continue  # of a request that was given up, or not asked for
                    if found == _DONE:
                        return
                    if found == _ERROR:
                        code = -_ERROR_NUMBER.unpack_from(body)[0]
                        if code:
                            raise RecorderError(f"netlink request {kind}: {os.strerror(code)}")
                        return
                    yield body
                    if flags == _REQUEST:
                        return
        except TimeoutError:
            raise RecorderError(f"netlink request {kind}: no answer within {_TIMEOUT_S:.0f} s") from None
        except (OSError, struct.error) as error:
            raise RecorderError(f"netlink request {kind}: {error}") from None

    def received(self) -> Iterator[memoryview]:
        """Return the bodies of what has come without a request; some are lost if too many came.

        Raises:
            RecorderError: the kernel has lost some, or the socket fails; the next call goes on.
        """
        self._socket.settimeout(0)
        try:
            while True:
                for _, number, body in _messages(self._socket.recv(_MOST_NBYTES)):
                    if number == 0:
                        yield body
        except BlockingIOError:
            return
        except (OSError, struct.error) as error:
            raise RecorderError(f"netlink messages were lost: {error}") from None


def attributes(body: memoryview, offset: int) -> dict[int, memoryview]:
    """Return the attributes of a body, or of another attribute, by their type."""
    found = {}
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if not _ATTRIBUTE.size <= length <= len(body) - offset:
            break
        found[kind & _TYPE_MASK] = body[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return found


def attribute(kind: int, content: bytes) -> bytes:
    """Return an attribute of a request."""
    length = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(length, kind) + content + bytes(_aligned(length) - length)


def _messages(data: bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Return type, number and body of each message."""
    view, offset = memoryview(data), 0
    while offset + _HEAD.size <= len(view):
        length, kind, _, number, _ = _HEAD.unpack_from(view, offset)
        if not _HEAD.size <= length <= len(view) - offset:
            return
        yield kind, number, view[offset + _HEAD.size : offset + length]
        offset += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
