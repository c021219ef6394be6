"""Gradients in memory that ranks and parameter servers of a host share; messages then have only their heads.

Each rank has a block, into which it puts its gradients, and each server has one, into which it puts the sums. Others
open a block through /proc/PID/fd, which the kernel allows to processes of the same user. It has no name, so nothing
stays behind, however a process ends.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from hocket.errors import ResourceExhausted


@dataclass(frozen=True)
class BlockAddress:
    """Where a block of memory is.

    Args:
        pid, fd: process that has it, and its file descriptor there.
        nbytes: number of bytes.
    """

    pid: int
    fd: int
    nbytes: int


class MemoryBlock:
    """Memory that other processes of the same user can open.

    Args:
        nbytes: number of bytes.
        address: that of a block of another process; None: a new one.

    Raises:
        ResourceExhausted: there is not so much memory, or the other process does not have it.
    """

    def __init__(self, nbytes: int, address: BlockAddress | None = None) -> None:
        self._fd = -1
        try:
            if address is None:
                if nbytes > _available_nbytes():  # the kernel would kill a process for it
                    raise OSError(f"the host has {_available_nbytes()} bytes")
                self._fd = os.memfd_create("hocket gradients", os.MFD_CLOEXEC)
                os.posix_fallocate(self._fd, 0, max(nbytes, 1))
            else:
                self._fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", os.O_RDWR | os.O_CLOEXEC)
                if os.fstat(self._fd).st_size < nbytes:
                    raise OSError(f"it has only {os.fstat(self._fd).st_size} bytes")
            self._map = mmap.mmap(self._fd, max(nbytes, 1))
        except (OSError, OverflowError, ValueError) as error:
            self.close()
            whose = "" if address is None else f" of process {address.pid}"
            raise ResourceExhausted(f"{nbytes} bytes of shared memory{whose} cannot be had: {error}") from None
        self._nbytes = nbytes

    @property
    def address(self) -> BlockAddress:
        """Where it is."""
        return BlockAddress(os.getpid(), self._fd, self._nbytes)

    def tensor(self, begin: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a part of it as a flat tensor.

        Args:
            begin: its first byte.
            numel: number of elements.
            dtype: data type.
        """
        if not numel:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=numel, offset=begin)

    def close(self) -> None:
        """Close the file; the memory is freed with the last tensor of it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _available_nbytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def places_of(sizes: list[int]) -> list[int]:
    """Return the first bytes of parts of these sizes behind each other, each at a multiple of 64 bytes."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // 64) * 64
    return [*places, end]
