"""A fake device: its memory is a part of the host's memory that only its driver can access."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from typing import Any

import numpy as np

_Copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PAGE, _NONE, _ALL = mmap.PAGESIZE, 0, 3
_MEMORY_BYTES = 192 << 20
_Share = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Open = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class FakeDriver:
    """The host cannot read or write its memory: an access outside of the copies crashes the process."""

    def __init__(self, *, tells_frees: bool = False, kind: str = "device", fails: bool = False) -> None:
        self.name = "fake"
        self.tells_frees = tells_frees
        self.asked: list[int] = []
        self.synchronized: list[tuple[int, int | None]] = []
        self.fails = fails
        self.copy_s = 0.0  # additional time of copies to the host
        self._lock = threading.RLock()  # the progress thread copies, too
        self.num_to_host = self.num_to_device = 0
        self._kind = kind
        self._next_id = 100
        self._file = os.memfd_create("fake device")
        os.ftruncate(self._file, _MEMORY_BYTES)
        self._map = mmap.mmap(self._file, _MEMORY_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._ranges = {self._base: _MEMORY_BYTES}
        self.buffers: dict[int, tuple[int, int]] = {}  # by address: end, id
        self._functions = _Copy(self._to_host), _Copy(self._to_device)
        self.copy_to_host, self.copy_to_device = (ctypes.cast(each, ctypes.c_void_p).value for each in self._functions)
        if kind == "device":
            self._protect(_NONE)

    def _protect(self, mode: int) -> None:
        for begin, nbytes in self._ranges.items():
            assert _libc.mprotect(begin, nbytes, mode) == 0

    def _copy(self, to: int, source: int, nbytes: int) -> int:
        if self.fails:
            return 700
        with self._lock:
            self._protect(_ALL)
            ctypes.memmove(to, source, nbytes)
            if self._kind == "device":
                self._protect(_NONE)
        return 0

    def _to_host(self, to: int, source: int, nbytes: int) -> int:
        self.num_to_host += 1
        result = self._copy(to, source, nbytes)
        time.sleep(self.copy_s)
        return result

    def _to_device(self, to: int, source: int, nbytes: int) -> int:
        self.num_to_device += 1
        return self._copy(to, source, nbytes)

    def allocate(self, nbytes: int, page: int = 0) -> int:
        """Allocate memory from a page on; the same page twice gives the same address with another id."""
        address = self._base + page * _PAGE
        assert page * _PAGE + nbytes <= _MEMORY_BYTES
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


class SharingDriver(FakeDriver):
    """A device whose memory other processes can open by handles of 64 bytes; as in CUDA, the owner itself cannot.

    Args:
        shares: whether its allocations can be shared.
        opens: whether it can open allocations of others.
    """

    def __init__(self, *, shares: bool = True, opens: bool = True) -> None:
        super().__init__()
        self._shares, self._opens = shares, opens
        self._maps: list[mmap.mmap] = []
        self.open_now: dict[int, tuple[int, int]] = {}  # by address: pid and place of the allocation
        self.num_within = self.num_closed = self.num_refused = 0
        self._sharing = _Copy(self._within), _Share(self._share), _Open(self._open), _Close(self._close)
        self.copy_within, self.share, self.open, self.close = (
            ctypes.cast(each, ctypes.c_void_p).value for each in self._sharing
        )

    def _within(self, to: int, source: int, nbytes: int) -> int:
        self.num_within += 1
        return self._copy(to, source, nbytes)

    def _share(self, begin: int, handle: int) -> int:
        assert begin in self.buffers
        text = f"{os.getpid()} {self._file} {begin - self._base}".encode().ljust(64)
        ctypes.memmove(handle, text, 64)
        return int(self._shares)

    def _open(self, handle: int) -> int:
        if not self._opens:
            return 0
        pid, file, place = map(int, ctypes.string_at(handle, 64).split())
        if pid == os.getpid() or (pid, place) in self.open_now.values():  # CUDA refuses both
            self.num_refused += 1
            return 0
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
        memory = mmap.mmap(opened, _MEMORY_BYTES)
        os.close(opened)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        with self._lock:
            self._ranges[begin] = _MEMORY_BYTES
            self._maps.append(memory)
            self._protect(_NONE)
        self.open_now[begin + place] = pid, place
        return begin + place

    def _close(self, address: int) -> int:
        del self.open_now[address]
        self.num_closed += 1
        return 0


class DeviceArray:
    """An array that exports the CUDA array interface."""

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
    """Some items of an array; the array keeps the memory."""

    def __init__(self, array: DeviceArray, offset: int, count: int) -> None:
        self.array = array
        interface = array.__cuda_array_interface__
        address = array.address + offset * array.like.itemsize
        self.__cuda_array_interface__ = {**interface, "shape": (count,), "data": (address, False)}


def tensor_on_device(driver: FakeDriver, x: Any) -> Any:
    """Return a torch tensor that claims to be in the memory of a CUDA device, with the items of x."""
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
