"""The declarations of shared memory, which is built in (native/shm) and so has no adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from hocket import _native
from hocket.backends._declaration import Declaration, Finding, LinkSpec, Tested


class SharedMemory(Declaration):
    """The declarations of "shm", the first backend of every communicator within a host.

    Examples:
        >>> from hocket.backends import SharedMemory
        >>> SharedMemory.name, SharedMemory.link.bandwidth_gb_s
        ('shm', 8.0)
    """

    name: ClassVar[str] = "shm"
    link: ClassVar[LinkSpec | None] = LinkSpec(0.15e-6, 8.0)
    tested: ClassVar[Tested | None] = Tested(num_ranks=(1, 2, 3, 5), one_case_in=1)

    @classmethod
    def diagnose(cls) -> Iterator[Finding]:
        yield _memory()
        yield _single_copy()
        policy = _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        if "[never]" in policy or "[deny]" in policy:
            yield Finding(
                "huge pages",
                "note",
                "shared memory has no huge pages, which costs a few per cent with large arrays",
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
            )
        elif policy:
            yield Finding("huge pages", "good", f"shared memory: {policy[policy.find('[') + 1 : policy.find(']')]}")


def _memory() -> Finding:
    try:
        os.close(os.memfd_create("hocket-doctor"))
    except OSError as error:
        return Finding(
            "shared memory",
            "problem",
            f"memfd_create fails: {error}",
            "run on Linux 3.17 or later, without a seccomp filter that forbids it",
        )
    return Finding("shared memory", "good", "memfd works")


def _single_copy() -> Finding:
    if os.environ.get("HOCKET_SINGLE_COPY") == "0":
        return Finding(
            "single copy", "note", "disabled by HOCKET_SINGLE_COPY=0", "unset it for large gathers and scatters"
        )
    if not _native.has_single_copy():
        return Finding(
            "single copy",
            "note",
            "this process may not read the memory of another: gather and scatter of more than two ranks copy twice",
            "in a container allow process_vm_readv (e.g. --cap-add SYS_PTRACE)",
        )
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope not in ("", "0") and os.geteuid() != 0:
        return Finding(
            "single copy",
            "note",
            f"Yama's ptrace_scope is {scope}: reading between ranks may be refused; gather and scatter then copy twice",
            "sysctl kernel.yama.ptrace_scope=0",
        )
    return Finding(
        "single copy",
        "good",
        "gather and scatter of more than two ranks read large blocks directly from their owner's memory",
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
