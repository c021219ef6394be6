"""Frames in device memory, between two processes of a host: the receiver copies them out of the sender's allocation.

They are those of objects that distributed's serializers of the family "cuda" know, such as arrays of CuPy. An end takes
them if it could read the first bytes that the other one lent; so both have a device, and the receiver's can open memory
of the sender's. On all other connections, distributed's serializers copy them to the host and back.

Devices are asked in a thread: they wait for what they still have to do, and their first use takes long.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from distributed.comm.core import CommClosedError
from distributed.utils import offload

from hocket._native import FrameLoan, copy_loan, lend_frame, memory_cookie, read_loan, write_device
from hocket.errors import HocketError
from hocket.memory.allocation import Allocator, find_allocator

logger = logging.getLogger(__name__)
DEVICE_SERIALIZERS = ("cuda", "dask", "pickle", "error")
"""Of messages whose frames may be in device memory."""


class DeviceCookie:
    """Bytes in device memory by which others make sure that they can open that of this process; kept while it runs.

    Args:
        digits: the bytes.
    """

    def __init__(self, digits: bytes) -> None:
        self._digits = digits
        self._loans: dict[tuple[Allocator, bool], FrameLoan | None] = {}
        self._failed: set[Allocator] = set()

    async def loan(self, is_for_others: bool) -> FrameLoan | None:
        """Return the loan of the bytes, for other processes or this one; None: its device memory cannot be opened."""
        allocate = find_allocator()
        if allocate is None or allocate in self._failed:
            return None
        key = allocate, is_for_others
        if key not in self._loans:
            try:
                self._loans[key] = await offload(self._lend, allocate, is_for_others)
            except Exception as error:  # of a driver, or a library of arrays
                self.give_up(allocate, f"that of this process cannot be used: {error}")
        return self._loans.get(key)

    async def can_read(self, told: str, digits: bytes, peer_pid: int) -> bool:
        """Return whether a peer's bytes can be read.

        Args:
            told: what the peer has told of their loan, in hexadecimal digits; "": it lends none.
            digits: the bytes.
            peer_pid: its process.
        """
        own = await self.loan(False) if told else None  # it need not be open to others
        if own is None:
            return False
        try:
            return await offload(read_loan, bytes.fromhex(told), peer_pid, own) == digits
        except (ValueError, HocketError) as error:
            logger.warning(
                "arrays in device memory go over the host: that of process %d is closed: %s", peer_pid, error
            )
            return False

    def give_up(self, allocate: Allocator, why: str) -> None:
        """Use no frames in such device memory on connections that are opened after this."""
        if allocate not in self._failed:
            logger.warning("arrays in device memory go over the host: %s", why)
        self._failed.add(allocate)

    def _lend(self, allocate: Allocator, is_for_others: bool) -> FrameLoan | None:
        array = allocate(len(self._digits))
        write_device(array, self._digits)
        return lend_frame(array, is_for_others)


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

    lent = await offload(lend)
    closed = next((frame for frame, each in zip(frames, lent, strict=True) if each is None), None)
    if closed is None:
        return lent
    logger.warning(
        "arrays in device memory go over the host: one of type %s is in memory that no other process can open",
        type(closed).__name__,
    )
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
        array = allocate(int.from_bytes(told[-8:], "little"))
        copy_loan(told, peer_pid, array)
        return array

    try:
        return await offload(lambda: [take(each) if isinstance(each, bytes) else each for each in frames])
    except Exception as error:  # of a driver, or a library of arrays
        device_cookie().give_up(allocate, f"what process {peer_pid} has lent cannot be copied: {error}")
        raise CommClosedError(f"a frame in device memory cannot be copied: {error}") from error
