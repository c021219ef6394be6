"""A device whose memory is a part of the host's that nothing but its driver may touch."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_Copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PAGE, _NONE, _ALL = mmap.PAGESIZE, 0, 3


class FakeDriver:
    """Its memory cannot be read or written by the host: a touch of it outside of the copies is a crash."""

    def __init__(self, *, tells_frees: bool = False, kind: str = "device", fails: bool = False) -> None:
        self.name = "fake"
        self.tells_frees = tells_frees
        self.asked: list[int] = []
        self.synchronized: list[tuple[int, int | None]] = []
        self.fails = fails
        self._kind = kind
        self._next_id = 100
        self._map = mmap.mmap(-1, 4 << 20)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.buffers: dict[int, tuple[int, int]] = {}  # by address: end, id
        self._functions = _Copy(self._to_host), _Copy(self._to_device)
        self.copy_to_host, self.copy_to_device = (ctypes.cast(each, ctypes.c_void_p).value for each in self._functions)
        if kind == "device":
            self._protect(_NONE)

    def _protect(self, mode: int) -> None:
        assert _libc.mprotect(self._base, len(self._map), mode) == 0

    def _copy(self, to: int, source: int, nbytes: int) -> int:
        if self.fails:
            return 700
        self._protect(_ALL)
        ctypes.memmove(to, source, nbytes)
        if self._kind == "device":
            self._protect(_NONE)
        return 0

    def _to_host(self, to: int, source: int, nbytes: int) -> int:
        return self._copy(to, source, nbytes)

    def _to_device(self, to: int, source: int, nbytes: int) -> int:
        return self._copy(to, source, nbytes)

    def allocate(self, nbytes: int, page: int = 0) -> int:
        """Give out memory from a page on; the same page twice is the same address with another id."""
        address = self._base + page * _PAGE
        self._next_id += 1
        self.buffers[address] = (address + nbytes, self._next_id)
        return address

    def free(self, address: int) -> None:
        del self.buffers[address]

    def query(self, address: int) -> tuple[int, int, str, int, int]:
        self.asked.append(address)
        for begin, (end, number) in self.buffers.items():
            if begin <= address < end:
                return begin, end, self._kind, 3, number
        return address, address + 1, "host", 0, 0

    def buffer_id(self, address: int) -> int:
        *_, number = self.query(address)
        return number

    def synchronize(self, device: int, stream: int | None) -> None:
        self.synchronized.append((device, stream))

    def write(self, address: int, x: np.ndarray[Any, Any]) -> None:
        assert self._copy(address, x.ctypes.data, x.nbytes) == 0

    def read(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = np.empty_like(like)
        assert self._copy(out.ctypes.data, address, out.nbytes) == 0
        return out


class DeviceArray:
    """What exports the CUDA array interface."""

    def __init__(self, driver: FakeDriver, x: np.ndarray[Any, Any], page: int = 0, **fields: Any) -> None:
        self.driver, self.like = driver, x
        self.address = driver.allocate(max(1, x.nbytes), page)
        driver.write(self.address, x)
        self.__cuda_array_interface__ = {
            "shape": x.shape, "typestr": x.dtype.str, "data": (self.address, False), "version": 3,
        } | fields  # fmt: skip

    def view(self, offset: int, count: int) -> DeviceView:
        return DeviceView(self, offset, count)

    def read(self) -> np.ndarray[Any, Any]:
        return self.driver.read(self.address, self.like)


class DeviceView:
    """Some items of an array; what keeps the memory is the array."""

    def __init__(self, array: DeviceArray, offset: int, count: int) -> None:
        self.array = array
        interface = array.__cuda_array_interface__
        address = array.address + offset * array.like.itemsize
        self.__cuda_array_interface__ = {**interface, "shape": (count,), "data": (address, False)}


def tensor_on_device(driver: FakeDriver, x: Any) -> Any:
    """Return a torch tensor that says of itself that it is in the memory of a CUDA device, with the items of x."""
    import torch

    address = driver.allocate(max(1, x.nbytes))
    driver.write(address, x.numpy())

    class CudaTensor(torch.Tensor):
        is_cpu, is_cuda, device = False, True, torch.device("cuda", 3)

        def data_ptr(self) -> int:
            return address

        def read(self) -> Any:
            return driver.read(address, x.numpy())

    return x.as_subclass(CudaTensor)
