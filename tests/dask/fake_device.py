"""A device for the processes of Dask: its arrays have serializers of the family "cuda", as those of CuPy have."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from typing import Any

import numpy as np
from distributed.comm import CommClosedError, listen
from distributed.protocol import dask_deserialize, dask_serialize, to_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

import hocket as hk

from ..memory.devices import SharingDriver

_PAGE = 4096
_POOL_BYTES = 128 << 20
Numbers = np.ndarray[Any, Any]


class DeviceBytes:
    """Memory of the device, freed with this object."""

    def __init__(self, driver: ArrayDriver, nbytes: int) -> None:
        self.driver, self.nbytes = driver, nbytes
        if driver.pool:
            self.address = driver.pool + driver.next_page * _PAGE
        else:
            self.address = driver.allocate(max(1, nbytes), driver.next_page)
            weakref.finalize(self, driver.free, self.address).atexit = False
        driver.next_page += nbytes // _PAGE + 1
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3,
        }  # fmt: skip


class ArrayDriver(SharingDriver):
    """A driver that gives memory for arrays.

    Args:
        pools: whether all arrays are parts of one allocation.
        options: of `SharingDriver`.
    """

    def __init__(self, *, pools: bool = False, **options: bool) -> None:
        super().__init__(**options)
        self.next_page = 0
        self.pool = self.allocate(_POOL_BYTES) if pools else 0

    def allocate_array(self, nbytes: int) -> DeviceBytes:
        """See `hocket.memory.MemoryDriver`."""
        return DeviceBytes(self, nbytes)


class DeviceNumbers:
    """An array on the device.

    Args:
        memory: of its items.
        dtype, shape: of the array.
    """

    def __init__(self, memory: DeviceBytes, dtype: Any, shape: tuple[int, ...]) -> None:
        self.memory, self.dtype, self.shape, self.nbytes = memory, np.dtype(dtype), shape, memory.nbytes

    def read(self) -> Numbers:
        """Return a copy on the host."""
        flat = self.memory.driver.read(self.memory.address, np.empty(self.nbytes, "u1"))
        return flat.view(self.dtype).reshape(self.shape)


def to_device(x: Numbers) -> DeviceNumbers:
    """Return an array with the items of one of the host."""
    memory = DeviceBytes(driver(), x.nbytes)
    memory.driver.write(memory.address, np.ascontiguousarray(x).reshape(-1).view("u1"))
    return DeviceNumbers(memory, x.dtype, x.shape)


_drivers: list[ArrayDriver] = []
_lock = threading.Lock()


def use_device(**options: bool) -> None:
    """Let this process have a device."""
    with _lock:
        _drivers[:] = [ArrayDriver(**options)]
        hk.memory.use_driver(_drivers[0])


def driver() -> ArrayDriver:
    """Return the driver of this process."""
    return _drivers[0]


def state() -> tuple[int, int, int, int]:
    """Return the numbers of copies to the host and within devices, and of allocations of others: open, and closed."""
    return driver().num_to_host, driver().num_within, len(driver().open_now), driver().num_closed


@cuda_serialize.register(DeviceNumbers)
def _lend(x: DeviceNumbers) -> tuple[dict[str, Any], list[Any]]:
    return {"dtype": x.dtype.str, "shape": x.shape}, [x.memory]


@cuda_deserialize.register(DeviceNumbers)
def _take(header: dict[str, Any], frames: list[Any]) -> DeviceNumbers:
    assert isinstance(frames[0], DeviceBytes)
    return DeviceNumbers(frames[0], header["dtype"], tuple(header["shape"]))


@dask_serialize.register(DeviceNumbers)
def _to_host(x: DeviceNumbers) -> tuple[dict[str, Any], list[Any]]:
    return {"dtype": x.dtype.str, "shape": x.shape}, [memoryview(x.read().reshape(-1).view("u1"))]


@dask_deserialize.register(DeviceNumbers)
def _from_host(header: dict[str, Any], frames: list[Any]) -> DeviceNumbers:
    flat = np.concatenate([np.frombuffer(each, "u1") for each in frames])
    return to_device(flat.view(header["dtype"]).reshape(header["shape"]))


def echo(**options: bool) -> None:
    """Send what comes back, twice as large, until stdin ends; then print `state`: a process for tests."""
    use_device(**options)

    async def handle(comm: Any) -> None:
        try:
            while True:
                message = await comm.read()
                found = [
                    to_device(2 * each.read()) if isinstance(each, DeviceNumbers) else each for each in message["x"]
                ]
                del message
                await comm.write({"x": [to_serialize(each) for each in found], "path": comm.extra_info["path"]})
        except CommClosedError:
            pass

    async def main() -> None:
        async with await listen("hocket://127.0.0.1:0", handle) as listener:
            print(listener.contact_address, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print(*state(), flush=True)

    asyncio.run(main())
