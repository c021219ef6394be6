"""What can be observed on this machine, and why the rest cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from platform import machine

from hocket import _native
from hocket.errors import RecorderError
from hocket.observe.gloo import TESTED_TORCH, find_torch, match_gloo
from hocket.observe.nccl import nccl_status
from hocket.observe.run import hooks_library, memory_folder

_NEEDED_MIB = 8


@dataclass(frozen=True)
class SourceStatus:
    """Something that can be observed.

    Args:
        name: of the source.
        is_available: whether it can be read here.
        reason: what is read, or why it is unavailable.

    Examples:
        >>> from hocket import observe
        >>> {source.name for source in observe.find_sources()} >= {"recorder", "processes"}
        True
    """

    name: str
    is_available: bool
    reason: str


def find_sources() -> list[SourceStatus]:
    """Return everything that can be observed, and what is unavailable with the reason.

    Examples:
        >>> from hocket import observe
        >>> all(source.reason for source in observe.find_sources())
        True
    """
    return list(_sources())


def _sources() -> Iterator[SourceStatus]:
    if os.environ.get("HOCKET_RECORDER") == "0":
        yield SourceStatus("recorder", False, "HOCKET_RECORDER=0 switches it off")
    else:
        yield _memory()
    yield _hooks()
    yield SourceStatus(
        "clock", True, "ticks of the processor" if _native.ticks_are_tsc() else "nanoseconds of the kernel"
    )
    yield _process_io()
    yield _completeness()
    yield _gloo()
    yield SourceStatus("NCCL", *nccl_status())
    for name, package in (("MPI", "mpi4py"), ("fsspec", "fsspec")):
        has_it = find_spec(package) is not None
        yield SourceStatus(name, has_it, f"{package} is installed" if has_it else f"{package} is not installed")
    yield from _shared_file_systems()
    yield _scheduler()


def _memory() -> SourceStatus:
    try:
        folder = memory_folder()
    except RecorderError as error:
        return SourceStatus("recorder", False, f"{error}; each process keeps its recorder in memory that ends with it")
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _NEEDED_MIB << 20:
        return SourceStatus("recorder", False, f"{folder} has {free >> 20} MiB left; each process needs {_NEEDED_MIB}")
    return SourceStatus("recorder", True, f"each process leaves up to {_NEEDED_MIB} MiB in {folder} while it runs")


def _hooks() -> SourceStatus:
    name = "programs without hocket"
    if machine() not in ("x86_64", "AMD64"):
        return SourceStatus(name, False, f"the hooks are for x86-64; this processor is {machine()}")
    try:
        return SourceStatus(name, True, f"{hooks_library()} is loaded into them by `hocket observe run`")
    except RecorderError as error:
        return SourceStatus(name, False, str(error))


def _gloo() -> SourceStatus:
    name = "torch over gloo"
    library = find_torch()
    if library is None:
        return SourceStatus(name, False, "torch is not installed")
    try:
        match = match_gloo(library)
    except RecorderError as error:
        return SourceStatus(name, False, str(error))
    if match.problem:
        return SourceStatus(name, False, match.problem)
    tested = ", ".join(TESTED_TORCH)
    return SourceStatus(name, True, match.name if match.is_tested else f"{match.name}, untested; tested is {tested}")


def _process_io() -> SourceStatus:
    try:
        Path("/proc/self/io").read_text()
    except OSError as error:
        return SourceStatus("processes", False, f"/proc/PID/io: {error.strerror}")
    return SourceStatus("processes", True, "CPU, memory, switches, page faults and I/O of your processes")


def _completeness() -> SourceStatus:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    try:
        value = scope.read_text().strip()
    except OSError:
        value = "0"
    if value == "0" or os.geteuid() == 0:
        return SourceStatus("attach", True, "recorders of all your processes can be read")
    return SourceStatus(
        "attach", False, f"kernel.yama.ptrace_scope is {value}: only your own children can be read, or be root"
    )


def _shared_file_systems() -> Iterator[SourceStatus]:
    lustre = Path("/proc/fs/lustre/llite")
    yield SourceStatus(
        "Lustre", lustre.is_dir(), f"counters in {lustre}" if lustre.is_dir() else f"there is no {lustre}"
    )
    statistics = Path("/proc/self/mountstats")
    has_nfs = statistics.is_file() and " nfs" in statistics.read_text(errors="replace")
    yield SourceStatus("NFS", has_nfs, f"counters in {statistics}" if has_nfs else "no NFS is mounted")


def _scheduler() -> SourceStatus:
    for variable, name in (("SLURM_JOB_ID", "Slurm"), ("PBS_JOBID", "PBS")):
        if variable in os.environ:
            return SourceStatus("job", True, f"{name} job {os.environ[variable]}")
    return SourceStatus("job", False, "neither SLURM_JOB_ID nor PBS_JOBID is set")
