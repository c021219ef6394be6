"""Frames in device memory, between two processes of a host: the receiver copies them out of the sender's allocation.

They are those of objects that distributed's serializers of the family "cuda" know, such as arrays of CuPy. An end takes
them if it could read the first bytes that the other one lent; so both have a device, and the receiver's can open memory
of the sender's. On all other connections, distributed's serializers copy them to the host and back.

Devices are asked in a thread: they wait for what they still have to do, and their first use takes long.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from distributed.comm.core import CommClosedError
from distributed.utils import offload

from hocket._native import (
    FrameLoan,
    copy_loan,
    has_memory_driver,
    lend_frame,
    memory_cookie,
    read_loan,
    write_device,
)
from hocket.errors import HocketError
from hocket.memory.allocation import Allocator, find_allocator

logger = logging.getLogger(__name__)
DEVICE_SERIALIZERS = ("cuda", "dask", "pickle", "error")
"""Of messages whose frames may be in device memory."""
_NBYTES_AT = slice(96, 104)
"""Where a loan has the number of its bytes (native/frames/device_loan.hpp)."""
_RETRY_S = 60.0
"""Frames of a peer that could not be copied go over the host for so long."""


class DeviceCookie:
    """Bytes in device memory by which others make sure that they can open that of this process; kept while it runs.

    Args:
        digits: the bytes.
    """

    def __init__(self, digits: bytes) -> None:
        self._digits = digits
        self._loans: dict[tuple[Allocator, bool], FrameLoan | None] = {}  # written by the one thread of `offload`
        self._failed: dict[int, float] = {}  # peers whose frames could not be copied; when, of time.monotonic()

    async def loan(self, is_for_others: bool) -> FrameLoan | None:
        """Return the loan of the bytes, for other processes or this one; None: its device memory cannot be opened."""
        allocate = find_allocator()
        if allocate is None:
            return None
        key = allocate, is_for_others
        return self._loans[key] if key in self._loans else await offload(self._lend_once, *key)

    async def can_read(self, told: str, digits: bytes, peer_pid: int) -> bool:
        """Return whether a peer's bytes can be read, and no frame of it could not be copied of late.

        Args:
            told: what the peer has told of their loan, in hexadecimal digits; "": it lends none.
            digits: the bytes.
            peer_pid: its process.
        """
        own = await self.loan(False) if told else None  # it need not be open to others
        if own is None or time.monotonic() - self._failed.get(peer_pid, -_RETRY_S) < _RETRY_S:
            return False
        try:
            return await offload(read_loan, bytes.fromhex(told), peer_pid, own) == digits
        except (ValueError, HocketError) as error:
            logger.warning(
                "arrays in device memory go over the host: that of process %d is closed: %s", peer_pid, error
            )
            return False

    def note_failure(self, peer_pid: int) -> None:
        """Take no frames in device memory of a peer on connections that are opened soon."""
        now_s = time.monotonic()
        self._failed = {pid: when for pid, when in self._failed.items() if now_s - when < _RETRY_S} | {peer_pid: now_s}

    def _lend_once(self, allocate: Allocator, is_for_others: bool) -> FrameLoan | None:
        key = allocate, is_for_others
        if key not in self._loans:
            self._loans[key] = self._lend(allocate, is_for_others)
        return self._loans[key]

    def _lend(self, allocate: Allocator, is_for_others: bool) -> FrameLoan | None:
        if not has_memory_driver():  # the library was imported where there is no device
            return None
        try:
            array = allocate(len(self._digits))
            write_device(array, self._digits)
            return lend_frame(array, is_for_others)
        except Exception as error:  # of a driver, or a library of arrays
            logger.warning("arrays in device memory go over the host: that of this process cannot be used: %s", error)
            return None


@cache
def device_cookie() -> DeviceCookie:
    """Return the one of this process."""
    return DeviceCookie(memory_cookie()[1])


async def lend_frames(frames: list[Any], peer_pid: int) -> list[Any] | None:
    """Return a message's frames with loans in the places of those in device memory; None: one cannot be lent."""
    on_device = [hasattr(each, "__cuda_array_interface__") for each in frames]
    if not any(on_device):
        return frames
    is_for_others = peer_pid != os.getpid()

    def lend() -> list[Any]:
        pairs = zip(frames, on_device, strict=True)
        return [lend_frame(each, is_for_others) if is_there else each for each, is_there in pairs]

    try:
        lent = await offload(lend)
        closed = next((frame for frame, each in zip(frames, lent, strict=True) if each is None), None)
        if closed is None:
            return lent
        why = f"one of type {type(closed).__name__} is in memory that no other process can open"
    except Exception as error:  # of a driver, or a library of arrays
        why = f"one cannot be lent: {error}"
    logger.warning("arrays in device memory go over the host: %s", why)
    return None


async def take_loans(frames: Sequence[memoryview | bytes], peer_pid: int) -> list[Any]:
    """Return a message's frames with copies of what a peer has lent, in device memory of this process.

    Raises:
        CommClosedError: there is no memory for them, or they cannot be copied.
    """
    allocate = find_allocator()
    if allocate is None:
        raise CommClosedError("a frame in device memory has come, but this process has no device")

    def take(told: bytes) -> Any:
        array = allocate(int.from_bytes(told[_NBYTES_AT], "little"))
        copy_loan(told, peer_pid, array)
        return array

    try:
        return await offload(lambda: [take(each) if isinstance(each, bytes) else each for each in frames])
    except Exception as error:  # of a driver, or a library of arrays
        device_cookie().note_failure(peer_pid)
        raise CommClosedError(f"a frame in device memory cannot be copied: {error}") from error
