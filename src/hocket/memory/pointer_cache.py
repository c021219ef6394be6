"""The driver of device memory, and the cache in front of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from hocket import _native
from hocket.errors import InvalidType

_OF_ALL = ("name", "tells_frees", "copy_to_host", "copy_to_device", "query", "buffer_id", "synchronize")
_OF_SHARING = ("copy_within", "share", "open", "close")


class MemoryDriver(Protocol):
    """What hocket asks about memory that is not the host's. CUDA's is built in; this is for others, and for tests.

    Attributes:
        name: for messages.
        tells_frees: whether `forget` is called for every allocation that is given back. If not, an answer holds as long
            as the array lives for which it was given, and is confirmed by `buffer_id` after that.
        copy_to_host, copy_to_device: addresses of C functions ``int (void *to, const void *from, size_t nbytes)`` that
            return 0, or a number of an error; called from any thread.

    A driver whose memory other processes of the host can open has four more, addresses of C functions as well, and the
    ranks of a host use each other's arrays in device memory where they are. A handle has 64 bytes.

        copy_within: as the copies; both addresses are of device memory, its own or opened.
        share: ``int (void *begin, void *handle)`` writes the handle of an allocation; 0 if it cannot be shared.
        open: ``void *(const void *handle)``, the address at which this process sees what another one shares; or NULL.
        close: ``int (void *address)`` of what was opened.
    """

    name: str
    tells_frees: bool
    copy_to_host: int
    copy_to_device: int

    def query(self, address: int) -> tuple[int, int, Literal["host", "device", "managed"], int, int]:
        """Return of the allocation around an address: first address, end, kind, number of the device, and an id that is
        never used again. Memory that the driver does not know is "host"."""

    def buffer_id(self, address: int) -> int:
        """Return the id of ``query(address)``; 0 where there is no allocation any more."""

    def synchronize(self, device: int, stream: int | None) -> None:
        """Wait for what was put on a stream, as ``__cuda_array_interface__`` numbers them; on all of them if None."""


@dataclass(frozen=True)
class PointerCacheCounters:
    """What the cache did since the driver was set.

    Args:
        hits: answers without the driver.
        queries: questions for an allocation.
        confirmations: questions whether an allocation is still the same.
        forgotten: allocations that were given back.
        buffers: allocations that are known now.
    """

    hits: int
    queries: int
    confirmations: int
    forgotten: int
    buffers: int


def use_driver(driver: MemoryDriver | None) -> None:
    """Let a driver answer for device memory from now on; None: that of CUDA. What is known of pointers is forgotten.

    Raises:
        InvalidType: it lacks something of `MemoryDriver`.
    """
    if driver is not None:
        shares = any(hasattr(driver, name) for name in _OF_SHARING)
        missing = [name for name in (*_OF_ALL, *(_OF_SHARING if shares else ())) if not hasattr(driver, name)]
        if missing:
            raise InvalidType(f"the driver {driver!r} has no {', '.join(missing)}; see hocket.memory.MemoryDriver")
    _native.use_memory_driver(driver)


def forget(address: int) -> None:
    """Say that the allocation with this address was given back; for drivers with `tells_frees`, and allocators."""
    _native.forget_buffer(address)


def counters() -> PointerCacheCounters:
    """Return what the cache has done."""
    return PointerCacheCounters(**_native.pointer_cache_counters())
