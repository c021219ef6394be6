"""MPI, through mpi4py: MPICH by default, Open MPI under its own launcher.

mpi4py loads the library and knows its handles; the operations themselves are native (native/mpi), always in their
non-blocking form. MPICH starts under any launcher that is none of MPI's through our own PMI-1 server
(`hocket.boot.pmi`); Open MPI 5 needs PMIx, which only its own launcher gives.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import hocket.boot.pmi
from hocket import _native
from hocket.backends.base import Backend, Job, Lanes, call_driving
from hocket.errors import BackendUnavailable, BootstrapMismatch, CommTimeout

_FLUSH_S = 2.0
_LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
_DATATYPES = {
    "float16": "UINT16_T", "bfloat16": "UINT16_T", "float32": "FLOAT", "float64": "DOUBLE", "int8": "INT8_T",
    "int16": "INT16_T", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "bool": "UINT8_T",
    "uint16": "UINT16_T", "uint32": "UINT32_T", "uint64": "UINT64_T", "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}  # fmt: skip
_REDUCTIONS = {
    "sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "avg": "SUM", "band": "BAND", "bor": "BOR",
    "bxor": "BXOR", "land": "LAND", "lor": "LOR", "lxor": "LXOR",
}  # fmt: skip


class MpiBackend(Backend):
    """A communicator of MPI's per lane."""

    name: ClassVar[str] = "mpi"

    def __init__(self, mpi: Any, job: Job, path: str) -> None:
        self._mpi = mpi
        self._job = job
        self._library = _native.MpiLibrary(
            path=path,
            backend=self.name,
            handle_nbytes=mpi._sizeof(mpi.COMM_WORLD),
            in_place=int(mpi.IN_PLACE) & (1 << 64) - 1,
            max_tag=mpi.COMM_WORLD.Get_attr(mpi.TAG_UB),
            error_truncate=mpi.ERR_TRUNCATE,
            byte=mpi._handleof(mpi.BYTE),
            datatypes={dtype: mpi._handleof(getattr(mpi, name)) for dtype, name in _DATATYPES.items()},
            reductions={op: mpi._handleof(getattr(mpi, name)) for op, name in _REDUCTIONS.items()},
        )
        self._communicators: dict[int, list[Any]] = {}

    @classmethod
    def find_obstacle(cls) -> str | None:
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed: pip install 'hocket[mpi]'"
        wanted = "openmpi" if _is_under_open_mpi() else "mpich"
        if "mpi4py.MPI" not in sys.modules and find_library(wanted) is None:
            return f"{wanted} is not installed: pip install {wanted}"
        return None

    @classmethod
    def start(cls, job: Job) -> MpiBackend:
        global _started
        is_up = "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized()
        states = job.exchange("ours" if _started is not None else "up" if is_up else "")
        if len(set(states)) > 1:
            up = [rank for rank, state in enumerate(states) if state]
            raise BackendUnavailable(
                f"MPI is up already on ranks {up} only: import mpi4py after hocket.init(), or on all ranks"
            )
        if _started is not None and not _started.is_for(job):
            raise BootstrapMismatch(
                f"MPI is up already with {_started.size} ranks, and cannot be started again for {job.size}"
            )
        if _started is None:
            _started = _join(job) if is_up else _start(job)
        mpi, path = _started.mpi, _started.path
        if (mpi.COMM_WORLD.size, mpi.COMM_WORLD.rank) != (job.size, job.rank):
            raise BootstrapMismatch(
                f"MPI says rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}, but this is rank {job.rank} of "
                f"{job.size}: start MPI by the launcher of the job, and import mpi4py after hocket.init()"
            )
        return cls(mpi, job, path)

    @property
    def description(self) -> str:
        # "MPICH Version:      5.0.2", "Open MPI v5.0.11, package: ..."
        return " ".join(
            self._mpi.Get_library_version().splitlines()[0].partition(",")[0].replace("Version:", "").split()
        )

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        mpi = self._mpi
        # Not of COMM_WORLD's group by Dup: only members are here. The tag keeps two groups of the same members apart.
        group = mpi.COMM_WORLD.Get_group().Incl(list(members))
        communicators = [
            call_driving("MPI_Comm_create_group", partial(_create_group, mpi, group, key % 10_000 * 2 + i), timeout)
            for i in range(2)
        ]
        rank, size = list(members).index(self._job.rank), len(members)
        self._communicators[key] = communicators
        collective, point_to_point = (mpi._handleof(each) for each in communicators)
        return Lanes(
            self._library.collective_lane(collective, rank, size),
            self._library.point_to_point_lane(point_to_point, rank, size),
            # MPI matches messages and collectives of a communicator apart.
            self._library.point_to_point_lane(collective, rank, size),
        )

    def close_lanes(self, key: int) -> None:
        for communicator in self._communicators.pop(key, []):
            communicator.Free()

    def close(self, *, is_broken: bool) -> None:
        if is_broken and _started is not None:
            _started.is_broken = True


def find_library(family: str) -> str | None:
    """Return the path of an MPI library that came as a wheel, or of the system's; None if there is none."""
    name = _LIBRARIES[family]
    for folder in (
        Path(sys.prefix) / "lib",
        *map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))),
    ):
        if (folder / name).exists():
            return str(folder / name)
    return None


class _Started:
    """The MPI of this process: it can be started once, and stays until the process ends.

    Args:
        finalize_s: how long to wait in MPI_Finalize at the end of the process, in seconds. A launcher of MPI's would
            miss it; other hosts need only the moment in which MPI sends them what is still under way. On one host
            under no launcher of MPI's nobody misses it (0), and it would wait for the last rank.
        is_missed: whether somebody misses it.
    """

    def __init__(self, mpi: Any, path: str, job: Job, *, finalize_s: float, is_missed: bool) -> None:
        self.mpi = mpi
        self.path = path
        self.size = job.size
        self.rank = job.rank
        self.is_broken = False
        self._finalize_s = finalize_s
        self._is_missed = is_missed
        if finalize_s > 0:
            atexit.register(self._finalize)

    def is_for(self, job: Job) -> bool:
        return (self.size, self.rank) == (job.size, job.rank)

    def _finalize(self) -> None:
        # After a failure the others may never come.
        if self.is_broken or _native.is_forked_child() or self.mpi.Is_finalized():
            return
        try:
            call_driving("MPI_Finalize", ctypes.CDLL(self.path).MPI_Finalize, self._finalize_s)
        except CommTimeout as error:
            if self._is_missed:
                print(f"hocket: {error}; leaving without it", file=sys.stderr)


_started: _Started | None = None


def _join(job: Job) -> _Started:
    """Use the MPI that the program has initialised; who did that finalizes it."""
    from mpi4py import MPI

    return _Started(MPI, _loaded_library(), job, finalize_s=0.0, is_missed=False)


def _start(job: Job) -> _Started:
    """Load and initialise MPI on all ranks, in steps of which each is agreed on before the next may block."""
    under_launcher = _is_under_mpi_launcher()
    if job.size > 1 and not under_launcher:
        os.environ["PMI_PORT"] = job.from_rank_zero(lambda: _serve_pmi(job))
        os.environ["PMI_ID"] = str(job.rank)
        os.environ["MPIR_CVAR_PMI_VERSION"] = "1"
    mpi, path = job.all_or_none(_load)
    library = ctypes.CDLL(path)  # its calls give up the GIL, which mpi4py's MPI.Init() does not
    provided = ctypes.c_int()
    code = call_driving(
        "MPI_Init_thread",
        lambda: library.MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided)),
        job.timeout,
    )
    job.exchange("")  # all have attached
    _unlink_shared_memory()
    if code != 0:
        raise BackendUnavailable(f"MPI_Init_thread failed with code {code}")
    spans_hosts = job.local_size < job.size
    finalize_s = job.timeout if under_launcher else _FLUSH_S if spans_hosts else 0.0
    return _Started(mpi, path, job, finalize_s=finalize_s, is_missed=under_launcher)


def _load() -> tuple[Any, str]:
    """Have mpi4py load a library; return its module and the library's path."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    if "MPI4PY_LIBMPI" not in os.environ:
        path = find_library("openmpi" if _is_under_open_mpi() else "mpich")
        if path is not None:
            os.environ["MPI4PY_LIBMPI"] = path
    from mpi4py import MPI

    return MPI, _loaded_library()


def _unlink_shared_memory() -> None:
    """Take the names off MPI's shared memory, so that nothing is left in /dev/shm however the job ends."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/mpich_shm_" in line}
    for path in paths:
        Path(path).unlink(missing_ok=True)


def _serve_pmi(job: Job) -> str:
    """Start the PMI-1 server and return its address. It ends by itself when all ranks are gone."""
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", hocket.boot.pmi.__file__, job.address, str(job.size)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    server.stdout.close()
    if not port:
        raise BackendUnavailable("the PMI server for MPI could not be started")
    return f"{job.address}:{port}"


def _create_group(mpi: Any, group: Any, tag: int) -> Any:
    communicator = mpi.COMM_WORLD.Create_group(group, tag)
    communicator.Set_errhandler(mpi.ERRORS_RETURN)
    return communicator


def _is_under_open_mpi() -> bool:
    return "OMPI_COMM_WORLD_RANK" in os.environ


def _is_under_mpi_launcher() -> bool:
    return _is_under_open_mpi() or any(name in os.environ for name in ("PMI_FD", "PMI_PORT", "PMI_RANK"))


def _loaded_library() -> str:
    """Return the path of the MPI library that mpi4py has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi" in line}
    found = sorted(path for path in paths if Path(path).name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so")))
    if len(found) != 1:
        raise BackendUnavailable(f"expected one loaded MPI library, found {found or 'none'}")
    return found[0]


ADAPTER = MpiBackend
