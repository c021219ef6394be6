"""The driver of device memory, and the cache in front of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from hocket import _native
from hocket.errors import InvalidType

_REQUIRED = ("name", "tells_frees", "copy_to_host", "copy_to_device", "query", "buffer_id", "synchronize")
_FOR_SHARING = ("copy_within", "share", "open", "close")
_chosen: MemoryDriver | None = None


class MemoryDriver(Protocol):
    """The interface of a driver for device memory. The one for CUDA is built in; implement it for other devices.

    Attributes:
        name: name of the driver, for messages.
        tells_frees: whether the driver calls `forget` for every allocation that is freed. If not, an answer of `query`
            is used while the array that it was given for exists; after that it is checked with `buffer_id`.
        copy_to_host, copy_to_device: addresses of C functions ``int (void *to, const void *from, size_t nbytes)`` that
            return 0 or an error number; called from any thread.

    If other processes of the host can open the memory, the driver has four more attributes, also addresses of C
    functions. Then the ranks of a host use each other's arrays in device memory in place. A handle has 64 bytes.

        copy_within: like the other copies; both addresses are in device memory, of this process or opened.
        share: ``int (void *begin, void *handle)`` writes the handle of an allocation; 0 if it cannot be shared.
        open: ``void *(const void *handle)`` returns the address of a shared allocation in this process, or NULL.
        close: ``int (void *address)`` closes an opened allocation.

    A driver may have the method ``allocate_array(nbytes)``, which returns an array with ``__cuda_array_interface__``:
    `hocket.dask` puts there what other processes of the host send.

    Examples:
        A driver whose device memory is part of the host's memory:

        >>> import ctypes
        >>> libc_copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        >>> copy = libc_copy(lambda to, source, nbytes: 0 if ctypes.memmove(to, source, nbytes) else 1)
        >>> class Toy:
        ...     name = "toy"
        ...     tells_frees = True
        ...     copy_to_host = copy_to_device = ctypes.cast(copy, ctypes.c_void_p).value
        ...     def query(self, address):
        ...         return address, address + 4096, "device", 0, 1
        ...     def buffer_id(self, address):
        ...         return 1
        ...     def synchronize(self, device, stream):
        ...         pass
        >>> hk.memory.use_driver(Toy())
        >>> hk.memory.use_driver(None)  # CUDA's again
    """

    name: str
    tells_frees: bool
    copy_to_host: int
    copy_to_device: int

    def query(self, address: int) -> tuple[int, int, Literal["host", "device", "managed"], int, int]:
        """Return the allocation that contains an address.

        Returns:
            Its first address, its end, its kind, the number of its device, and an id that is never reused. The kind of
            memory that the driver does not know is "host".
        """

    def buffer_id(self, address: int) -> int:
        """Return the id as in ``query(address)``; 0 if the address is no longer allocated."""

    def synchronize(self, device: int, stream: int | None) -> None:
        """Wait for all work on a stream, numbered as in ``__cuda_array_interface__``; None: on all streams."""


@dataclass(frozen=True)
class PointerCacheCounters:
    """Counters of the cache since the driver was set.

    Args:
        hits: answers without a driver call.
        queries: driver calls for an allocation.
        confirmations: driver calls that check whether an allocation is still the same.
        forgotten: allocations that were freed.
        buffers: allocations that are known now.

    Examples:
        >>> hk.memory.use_driver(None)  # all counters start at 0
        >>> hk.memory.counters().queries
        0
    """

    hits: int
    queries: int
    confirmations: int
    forgotten: int
    buffers: int


def use_driver(driver: MemoryDriver | None) -> None:
    """Set the driver for device memory, and clear the pointer cache.

    Args:
        driver: the driver to use from now on; None: the built-in driver for CUDA.

    Raises:
        InvalidType: the driver lacks an attribute of `MemoryDriver`.

    Examples:
        >>> hk.memory.use_driver(None)
        >>> hk.memory.use_driver("cuda")
        Traceback (most recent call last):
        hocket.errors.InvalidType: the driver 'cuda' has no name, tells_frees, ...; see hocket.memory.MemoryDriver
    """
    if driver is not None:
        shares = any(hasattr(driver, name) for name in _FOR_SHARING)
        missing = [name for name in (*_REQUIRED, *(_FOR_SHARING if shares else ())) if not hasattr(driver, name)]
        if missing:
            raise InvalidType(f"the driver {driver!r} has no {', '.join(missing)}; see hocket.memory.MemoryDriver")
    global _chosen
    _native.use_memory_driver(driver)
    _chosen = driver


def chosen_driver() -> MemoryDriver | None:
    """Return the driver that `use_driver` has set; None: the built-in one for CUDA."""
    return _chosen


def forget(address: int) -> None:
    """Remove an allocation that was freed from the cache; for allocators, and drivers with `tells_frees`.

    Args:
        address: any address in the allocation. Addresses that are not in the cache are ignored.

    Examples:
        >>> hk.memory.use_driver(None)
        >>> hk.memory.forget(0x7F0000000000)  # not in the cache
        >>> hk.memory.counters().forgotten
        0
    """
    _native.forget_buffer(address)


def counters() -> PointerCacheCounters:
    """Return the counters of the pointer cache.

    Examples:
        >>> hk.memory.use_driver(None)
        >>> hk.memory.counters()
        PointerCacheCounters(hits=0, queries=0, confirmations=0, forgotten=0, buffers=0)
    """
    return PointerCacheCounters(**_native.pointer_cache_counters())
