"""MPI, through mpi4py: MPICH by default, Open MPI under its own launcher.

mpi4py loads the library and provides its handles (`hocket.backends._mpi`); the operations are native (native/mpi),
always in their non-blocking form. "mpi:mpich" and "mpi:openmpi" name one of the two, so that both can be in one
process; they are used only when requested by name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from hocket import _native
from hocket.backends import _mpi
from hocket.backends._declaration import Finding, LinkSpec, Requirements, Tested, installed_version
from hocket.backends.base import Backend, BackendJob, Lanes, call_driving
from hocket.errors import BackendUnavailable, BootstrapMismatch

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
    """One MPI communicator per lane."""

    name: ClassVar[str] = "mpi"
    needs_driving: ClassVar[bool] = True
    link: ClassVar[LinkSpec | None] = LinkSpec(1e-6, 5.0)
    link_between_hosts: ClassVar[LinkSpec | None] = LinkSpec(50e-6, 1.0)
    requires: ClassVar[Requirements] = Requirements("mpi", {"mpi4py": ("_mpi",)})
    left_files: ClassVar[tuple[str, ...]] = ("mpich_shm_*", "psm2_shm*", "sm_segment.*", "vader_segment.*")
    tested: ClassVar[Tested | None] = Tested(num_ranks=(1, 2, 3), one_case_in=1)

    def __init__(self, started: _mpi.StartedMpi, job: BackendJob) -> None:
        self._mpi = mpi = started.mpi
        self._job = job
        self._library = _native_library(mpi, started.path, self.name)
        self._communicators: dict[int, list[Any]] = {}

    @classmethod
    def family(cls) -> str:
        """Return the family of the MPI library: "mpich" or "openmpi"."""
        return _mpi.default_family()

    @classmethod
    def find_obstacle(cls) -> str | None:
        return _mpi.find_obstacle(cls.family())

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        return _diagnose()

    @classmethod
    def start(cls, job: BackendJob) -> MpiBackend:
        started = _mpi.start(cls.family(), job)
        mpi = started.mpi
        if (mpi.COMM_WORLD.size, mpi.COMM_WORLD.rank) != (job.size, job.rank):
            raise BootstrapMismatch(
                f"MPI reports rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}, but this is rank {job.rank} of "
                f"{job.size}: start MPI by the launcher of the job, and import mpi4py after hocket.init()"
            )
        return cls(started, job)

    @property
    def description(self) -> str:
        # "MPICH Version:      5.0.2", "Open MPI v5.0.11, package: ..."
        return " ".join(
            self._mpi.Get_library_version().splitlines()[0].partition(",")[0].replace("Version:", "").split()
        )

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        mpi = self._mpi
        # Create_group and not Dup, because only members make this call. The tag separates groups of the same members.
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
            # MPI matches the messages and the collectives of a communicator separately.
            self._library.point_to_point_lane(collective, rank, size),
        )

    def close_lanes(self, key: int) -> None:
        for communicator in self._communicators.pop(key, []):
            communicator.Free()

    def close(self, *, is_broken: bool) -> None:
        if is_broken:
            _mpi.give_up(self.family())


class MpiWorld:
    """The MPI that runs in this process, whoever started it; for messages that belong to no job of hocket.

    Args:
        mpi: mpi4py's module.
        path: path of the library.

    Examples:
        >>> from hocket.backends.mpi import MpiWorld
        >>> MpiWorld.find() is None  # nobody has started MPI
        True
    """

    def __init__(self, mpi: Any, path: str) -> None:
        self._mpi = mpi
        mpi.COMM_WORLD.Set_errhandler(mpi.ERRORS_RETURN)  # mpi4py does so only where it has started MPI itself
        self._library = _native_library(mpi, path, "mpi")
        self.rank: int = mpi.COMM_WORLD.rank
        self.size: int = mpi.COMM_WORLD.size
        self.version = " ".join(mpi.Get_library_version().split())[:100]
        self.most_tag: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)

    @classmethod
    def find(cls) -> MpiWorld | None:
        """Return the running MPI, or None: it is not started, or has no other rank.

        Raises:
            BackendUnavailable: MPI runs, but several threads must not call it, or its library cannot be found.
        """
        found = _mpi.find_running()
        if found is None:
            return None
        mpi, _ = found
        if mpi.COMM_WORLD.size == 1:
            return None
        levels = {getattr(mpi, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
        level = levels.get(mpi.Query_thread(), str(mpi.Query_thread()))
        if level != "MULTIPLE":
            raise BackendUnavailable(
                f"MPI was started with thread level {level}, but another thread than the program's must call it: start "
                "it with THREAD_MULTIPLE, which mpi4py does unless mpi4py.rc.thread_level is set"
            )
        return cls(*found)

    @property
    def is_running(self) -> bool:
        """Whether MPI is not finalized."""
        return not self._mpi.Is_finalized()

    def message_lane(self) -> _native.Lane:
        """Return a lane for messages between all ranks of the world."""
        world = self._mpi.COMM_WORLD
        return self._library.point_to_point_lane(self._mpi._handleof(world), self.rank, self.size)


def _native_library(mpi: Any, path: str, name: str) -> _native.MpiLibrary:
    return _native.MpiLibrary(
        path=path,
        backend=name,
        handle_nbytes=mpi._sizeof(mpi.COMM_WORLD),
        in_place=int(mpi.IN_PLACE) & (1 << 64) - 1,
        max_tag=mpi.COMM_WORLD.Get_attr(mpi.TAG_UB),
        any_source=mpi.ANY_SOURCE,
        error_truncate=mpi.ERR_TRUNCATE,
        byte=mpi._handleof(mpi.BYTE),
        datatypes={dtype: mpi._handleof(getattr(mpi, name)) for dtype, name in _DATATYPES.items()},
        reductions={op: mpi._handleof(getattr(mpi, name)) for op, name in _REDUCTIONS.items()},
    )


def _create_group(mpi: Any, group: Any, tag: int) -> Any:
    communicator = mpi.COMM_WORLD.Create_group(group, tag)
    communicator.Set_errhandler(mpi.ERRORS_RETURN)
    return communicator


def _diagnose() -> Iterator[Finding]:
    under_open_mpi = _mpi.is_under_open_mpi()
    if importlib.util.find_spec("mpi4py") is None:
        yield Finding("mpi", "note", "mpi4py is not installed", "pip install 'hocket[mpi]' for MPI")
        return
    found = {family: _mpi.find_library(family) for family in ("mpich", "openmpi")}
    installed = {family: path for family, path in found.items() if path is not None}
    needed = "openmpi" if under_open_mpi else "mpich"
    version = installed_version("mpi4py")
    if needed not in installed:
        yield Finding(
            "mpi",
            "problem" if under_open_mpi else "note",
            f"mpi4py {version} is installed, but {needed}, which this launcher needs, is not"
            if under_open_mpi
            else f"mpi4py {version} is installed without {needed}",
            f"pip install {needed}",
        )
    else:
        yield Finding("mpi", "good", f"{needed} at {installed[needed]}")
    if len(installed) == 2 and all(path.startswith(sys.prefix) for path in installed.values()):
        yield Finding(
            "mpi launchers",
            "note",
            "mpich and openmpi are both installed, and both have the commands mpirun and mpiexec: those of the one "
            "installed last are used",
            "start MPICH with mpiexec.hydra or hocket run, Open MPI with prterun --personality ompi",
        )
    if under_open_mpi and os.environ.get("MPI4PY_LIBMPI", "").find("libmpi.so.12") >= 0:
        yield Finding(
            "mpi launchers",
            "problem",
            "under Open MPI's launcher MPI4PY_LIBMPI names MPICH, which would start each process as a job of one rank",
            "unset MPI4PY_LIBMPI, or start with hocket run",
        )


ADAPTER = MpiBackend
