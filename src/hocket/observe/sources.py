"""What can be observed on this machine, and why the rest cannot."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from platform import machine

from hocket import _native
from hocket.backends._mpi import find_library
from hocket.errors import RecorderError
from hocket.observe.batch import queued_job, task_in
from hocket.observe.file_systems import LUSTRE_FOLDERS, lustre_folder, nfs_samples
from hocket.observe.gloo import TESTED_TORCH, find_torch, match_gloo
from hocket.observe.mpi_variables import num_mpi_variables
from hocket.observe.nccl import nccl_status
from hocket.observe.neighbors import lldp_neighbors
from hocket.observe.run import hooks_library, is_in_memory, memory_folder
from hocket.observe.tcp_sockets import TcpSockets

_NEEDED_MIB = 8
_INFINIBAND = Path("/sys/class/infiniband")


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
    yield _record_io()
    yield _process_io()
    yield _figure()
    yield _attach()
    yield _gloo()
    yield SourceStatus("NCCL", *nccl_status())
    for name, package in (("MPI", "mpi4py"), ("fsspec", "fsspec")):
        has_it = find_spec(package) is not None
        yield SourceStatus(name, has_it, f"{package} is installed" if has_it else f"{package} is not installed")
    yield from _mpi_variables()
    yield _connections()
    yield _fabric()
    yield _neighbors()
    yield from _shared_file_systems()
    yield from _batch_system()


def _memory() -> SourceStatus:
    try:
        folder = memory_folder()
    except RecorderError as error:
        return SourceStatus("recorder", False, f"{error}; each process keeps its recorder in memory that ends with it")
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _NEEDED_MIB << 20:
        return SourceStatus("recorder", False, f"{folder} has {free >> 20} MiB left; each process needs {_NEEDED_MIB}")
    where = folder if is_in_memory(folder) else f"{folder}, which is on a disk: recording slows programs down"
    return SourceStatus("recorder", True, f"each process leaves up to {_NEEDED_MIB} MiB in {where} while it runs")


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


def _figure() -> SourceStatus:
    name = "share of I/O seen"
    try:
        text = Path("/proc/self/io").read_text()
    except OSError as error:
        return SourceStatus(name, False, f"/proc/PID/io: {error.strerror}")
    if "rchar: " not in text or "wchar: " not in text:
        return SourceStatus(name, False, "/proc/PID/io has no rchar and wchar: the kernel does not count them")
    return SourceStatus(name, True, "recorded bytes are compared with rchar and wchar of /proc/PID/io")


def _record_io() -> SourceStatus:
    name = "I/O of this process"
    hooks = _hooks()
    if not hooks.is_available:
        return SourceStatus(name, False, hooks.reason)
    if os.environ.get("HOCKET_RECORDER") == "0":
        return SourceStatus(name, False, "HOCKET_RECORDER=0 switches the recorder off")
    return SourceStatus(name, True, "hocket.observe.record_io() puts the hooks into a process that runs")


def _attach() -> SourceStatus:
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


def _mpi_variables() -> Iterator[SourceStatus]:
    for family, name in (("mpich", "MPICH"), ("openmpi", "Open MPI")):
        source, path = f"MPI_T of {name}", find_library(family)
        if path is None:
            yield SourceStatus(source, False, f"{name} is not installed")
            continue
        try:
            number = num_mpi_variables(path)
        except RecorderError as error:
            yield SourceStatus(source, False, str(error))
            continue
        reason = f"{number} performance variables" if number else "was built without performance variables"
        yield SourceStatus(source, number > 0, f"{path}: {reason}")


def _neighbors() -> SourceStatus:
    try:
        found = lldp_neighbors()
    except RecorderError as error:
        return SourceStatus("LLDP", False, str(error))
    return SourceStatus("LLDP", True, "; ".join(f"{device}: {text}" for device, text in found.items()) or "no neighbor")


def _fabric() -> SourceStatus:
    devices = sorted(each.name for each in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    if not devices:
        return SourceStatus("InfiniBand", False, f"this host has no adapter: {_INFINIBAND} is missing or empty")
    if shutil.which("ibnetdiscover") is None:
        return SourceStatus("InfiniBand", False, "ibnetdiscover is missing: install the package infiniband-diags")
    return SourceStatus("InfiniBand", True, f"hocket observe fabric, through {', '.join(devices)}")


def _connections() -> SourceStatus:
    name = "TCP connections"
    try:
        sockets = TcpSockets()
    except RecorderError as error:
        return SourceStatus(name, False, str(error))
    try:
        number = sum(1 for _ in sockets.open_sockets())
    except RecorderError as error:
        return SourceStatus(name, False, str(error))
    finally:
        sockets.close()
    return SourceStatus(name, True, f"bytes, round trips and limits of each connection; {number} now on this host")


def _shared_file_systems() -> Iterator[SourceStatus]:
    folder = lustre_folder()
    missing = f"neither {' nor '.join(map(str, LUSTRE_FOLDERS))} has counters that this user can read"
    yield SourceStatus("Lustre", folder is not None, f"counters in {folder}" if folder else missing)
    yield _nfs()


def _nfs() -> SourceStatus:
    try:
        mounts = [each.name for each in nfs_samples()]
    except RecorderError as error:
        return SourceStatus("NFS", False, str(error))
    return SourceStatus("NFS", bool(mounts), f"counters of {', '.join(mounts)}" if mounts else "no NFS is mounted")


def _batch_system() -> Iterator[SourceStatus]:
    task = task_in(os.environ)
    if task is None:
        reason = "neither SLURM_JOB_ID nor PBS_JOBID is set"
        yield SourceStatus("job", False, reason)
        yield SourceStatus("queue", False, f"this process is in no job: {reason}")
        return
    step = "" if task.step is None else f", step {task.step}"
    rank = "" if task.rank is None else f", task {task.rank} of {task.num_tasks or 'an unknown number'}"
    yield SourceStatus("job", True, f"{task.system} job {task.job}{step}{rank} on {task.nodes or 'unknown hosts'}")
    try:
        queued = queued_job(task)
    except RecorderError as error:
        yield SourceStatus("queue", False, str(error))
    else:
        said = (("state", queued.state), ("queue", queued.queue), ("since", queued.began), ("limit", queued.time_limit))
        yield SourceStatus("queue", True, ", ".join(f"{name} {value}" for name, value in said if value))
