"""Loads and starts MPI libraries: MPICH, Open MPI, or both in one process.

MPICH starts through hocket's own PMI-1 server (`hocket.boot.pmi`), except under its own launcher; under `hocket run`
the launcher itself is this server. Open MPI 5 needs PMIx, which its own launcher provides and, on one host, also
`hocket run` (`hocket.boot.open_mpi`). If both are in one process, ``from mpi4py import MPI`` gives the first. The
second is loaded with private symbols (RTLD_LOCAL), and so is mpi4py's module for it, because both libraries have
functions with the same names.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.backends.base import BackendJob, call_driving
from hocket.boot.mpi_variables import launchers_fd, say_own
from hocket.boot.open_mpi import ask_for_pmix, pmix_obstacle, will_be_open_mpi
from hocket.boot.pmi import connect_locally, start_local_server
from hocket.errors import BackendUnavailable, BootstrapMismatch, CommTimeout

_FLUSH_S = 2.0
_LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
_WORDS = {"mpich": "MPICH", "openmpi": "Open MPI"}
# Both bring UCX, whose hooks into malloc and mmap break a process that has both.
_UCX_WITHOUT_HOOKS = {"UCX_MEM_MMAP_HOOK_MODE": "none", "UCX_MEM_EVENTS": "no"}


class StartedMpi:
    """A started MPI library of this process: it can be started once, and stays until the process ends.

    Args:
        mpi: mpi4py's module.
        path: path of the library.
        job: the job that it was started for.
        finalize_s: longest wait in MPI_Finalize at the end of the process, in seconds. A launcher of MPI expects the
            call. Other hosts need only a short time, in which MPI sends them pending data. On one host without a
            launcher of MPI the call is not needed (0), and it would wait for the last rank.
        is_expected: whether the launcher expects MPI_Finalize.
    """

    def __init__(self, mpi: Any, path: str, job: BackendJob, *, finalize_s: float, is_expected: bool) -> None:
        self.mpi = mpi
        self.path = path
        self.size = job.size
        self.rank = job.rank
        self.is_broken = False
        self._finalize_s = finalize_s
        self._is_expected = is_expected
        if finalize_s > 0:
            atexit.register(self._finalize)

    def is_for(self, job: BackendJob) -> bool:
        return (self.size, self.rank) == (job.size, job.rank)

    def _finalize(self) -> None:
        # After a failure the other ranks may never call it.
        if self.is_broken or _native.is_forked_child() or self.mpi.Is_finalized():
            return
        try:
            call_driving("MPI_Finalize", ctypes.CDLL(self.path).MPI_Finalize, self._finalize_s)
        except CommTimeout as error:
            if self._is_expected:
                print(f"hocket: {error}; leaving without it", file=sys.stderr)


_started: dict[str, StartedMpi] = {}
# Families whose MPI_Init_thread did not return in time; MPI ends a process that calls it again.
_unfinished: set[str] = set()


def is_under_open_mpi() -> bool:
    return "OMPI_COMM_WORLD_RANK" in os.environ


def default_family() -> str:
    """Return the MPI that "mpi" means: the launcher's, otherwise the one that mpi4py would load."""
    if is_under_open_mpi():
        return "openmpi"
    if "mpi4py.MPI" in sys.modules:
        return _family_of(sys.modules["mpi4py.MPI"])
    return "openmpi" if will_be_open_mpi() and find_obstacle("openmpi") is None else "mpich"


def find_library(family: str) -> str | None:
    """Return the path of an MPI library from a wheel or of the system; None if it is not installed."""
    name = _LIBRARIES[family]
    for folder in (
        Path(sys.prefix) / "lib",
        *map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))),
    ):
        if (folder / name).exists():
            return str(folder / name)
    return None


def find_obstacle(family: str) -> str | None:
    """Return why this process cannot use an MPI of that family, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'hocket[mpi]'"
    if _module_of(family) is None and find_library(family) is None:
        return f"{family} is not installed: pip install {family}"
    if family == "openmpi" and not is_under_open_mpi() and (obstacle := pmix_obstacle()) is not None:
        return f"Open MPI: {obstacle}"
    return None


def allow_two(family: str) -> None:
    """Make settings that allow an MPI of that family beside another one; called before either is loaded.

    Raises:
        BackendUnavailable: the program has already loaded one without these settings.
    """
    if "mpi4py.MPI" in sys.modules and _module_of(family) is None:
        _check_two(family)
    os.environ.update(_UCX_WITHOUT_HOOKS)


def _check_two(family: str) -> None:
    missing = [f"{name}={value}" for name, value in _UCX_WITHOUT_HOOKS.items() if os.environ.get(name) != value]
    if missing:
        other = _WORDS[_family_of(sys.modules["mpi4py.MPI"])]
        raise BackendUnavailable(
            f"the program has already loaded {other}; to use {_WORDS[family]} beside it, set {' and '.join(missing)}"
        )


def start(family: str, job: BackendJob) -> StartedMpi:
    """Start an MPI library; called by all ranks, and only if no rank has an obstacle.

    Raises:
        BackendUnavailable: the start failed, or MPI had already been started on some ranks only.
        BootstrapMismatch: MPI has already been started for another job.
    """
    ours, program = _started.get(family), _module_of(family)
    is_up = program is not None and program.Is_initialized()
    states = job.exchange(
        "unfinished" if family in _unfinished else "ours" if ours is not None else "up" if is_up else ""
    )
    if "unfinished" in states:
        ranks = [rank for rank, state in enumerate(states) if state == "unfinished"]
        raise BackendUnavailable(
            f"MPI_Init_thread timed out in an earlier init() on ranks {ranks}, and a process can start MPI only once; "
            "start these ranks again"
        )
    if len(set(states)) > 1:
        up = [rank for rank, state in enumerate(states) if state]
        raise BackendUnavailable(
            f"MPI has already started on ranks {up} only: import mpi4py after hocket.init(), or on all ranks"
        )
    if ours is not None and not ours.is_for(job):
        raise BootstrapMismatch(f"MPI has started with {ours.size} ranks, and cannot be started again for {job.size}")
    if ours is None:
        _started[family] = ours = _join(family, program, job) if is_up else _start(family, job)
    return ours


def find_running() -> tuple[Any, str] | None:
    """Return mpi4py's module and the library's path of the MPI that runs in this process, whoever started it; or None.

    Raises:
        BackendUnavailable: MPI runs, but its library cannot be found.
    """
    if _native.is_forked_child():  # MPI belongs to the parent
        return None
    for started in _started.values():
        if not started.is_broken and not started.mpi.Is_finalized():
            return started.mpi, started.path
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    return module, _loaded_library(_family_of(module))


def give_up(family: str) -> None:
    """Mark an MPI as broken, so that it is not finalized."""
    if family in _started:
        _started[family].is_broken = True


def _join(family: str, mpi: Any, job: BackendJob) -> StartedMpi:
    """Use the MPI that the program has initialised; the program also finalizes it."""
    return StartedMpi(mpi, _loaded_library(family), job, finalize_s=0.0, is_expected=False)


def _start(family: str, job: BackendJob) -> StartedMpi:
    """Load and initialise MPI on all ranks, in steps. All ranks agree after each step, before the next may block."""
    under_launcher = is_under_open_mpi() == (family == "openmpi") and _is_under_mpi_launcher()
    if family == "openmpi":
        job.all_or_none(ask_for_pmix)
    mpi, path = job.all_or_none(lambda: _load(family))
    library = ctypes.CDLL(path)  # its calls release the GIL; mpi4py's MPI.Init() does not
    provided = ctypes.c_int()
    variables: dict[str, str] = {}
    if job.size > 1 and not under_launcher:
        if _is_served(job):
            say_own()
        else:
            variables = _connect_pmi(job)
    os.environ |= variables
    code = 0
    late: CommTimeout | None = None
    try:
        code = call_driving(
            "MPI_Init_thread",
            lambda: library.MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided)),
            job.timeout,
        )
    except CommTimeout as error:
        _unfinished.add(family)
        late = error
    finally:
        for name in variables:  # child processes of this rank must not join the job
            os.environ.pop(name, None)
    states = job.exchange("late" if late else "")  # all have attached, or given up
    unlink_shared_memory()
    if late:
        raise late
    if any(states):
        ranks = [rank for rank, state in enumerate(states) if state]
        raise BackendUnavailable(f"MPI_Init_thread timed out on ranks {ranks}")
    if code != 0:
        raise BackendUnavailable(f"MPI_Init_thread failed with code {code}")
    spans_hosts = job.local_size < job.size
    finalize_s = job.timeout if under_launcher else _FLUSH_S if spans_hosts else 0.0
    return StartedMpi(mpi, path, job, finalize_s=finalize_s, is_expected=under_launcher)


def _load(family: str) -> tuple[Any, str]:
    """Load a library through mpi4py; return mpi4py's module and the library's path."""
    named = os.environ.get("MPI4PY_LIBMPI", "")
    if named and "mpi4py.MPI" not in sys.modules and will_be_open_mpi() != (family == "openmpi"):
        # Before mpi4py's settings are changed, because the program may import it later.
        raise BackendUnavailable(f"MPI4PY_LIBMPI={named} is not {_WORDS[family]}")
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    if "mpi4py.MPI" in sys.modules and _module_of(family) is None:
        _check_two(family)
        return _load_second(family, Path(mpi4py.__path__[0]))
    with _naming_library(None if "MPI4PY_LIBMPI" in os.environ else find_library(family)):
        from mpi4py import MPI

    if _family_of(MPI) != family:
        named = os.environ.get("MPI4PY_LIBMPI", "what mpi4py finds")
        raise BackendUnavailable(f"{named} is {_WORDS[_family_of(MPI)]}, not {_WORDS[family]}")
    return MPI, _loaded_library(family)


def _load_second(family: str, folder: Path) -> tuple[Any, str]:
    path = find_library(family)
    files = list(folder.glob(f"MPI.{family}.*.so"))
    if path is None or not files:
        raise BackendUnavailable(f"two MPIs in one process need mpi4py and {family} as wheels: pip install both")
    ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    with _naming_library(path):
        # This name gives it mpi4py's settings; the module is not put into sys.modules.
        loader = ExtensionFileLoader("mpi4py.MPI", str(files[0]))
        spec = importlib.util.spec_from_loader("mpi4py.MPI", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    return module, path


@contextlib.contextmanager
def _naming_library(path: str | None) -> Iterator[None]:
    """Tell mpi4py which library to load meanwhile; None: what the environment says.

    Afterwards nothing is left of it, since a program that this process starts may use another MPI.
    """
    before = os.environ.get("MPI4PY_LIBMPI")
    if path is not None:
        os.environ["MPI4PY_LIBMPI"] = path
    try:
        yield
    finally:
        if before is not None:
            os.environ["MPI4PY_LIBMPI"] = before
        elif path is not None:
            os.environ.pop("MPI4PY_LIBMPI", None)


def _module_of(family: str) -> Any:
    """Return mpi4py's module if it is loaded for a library of that family, or None."""
    if family in _started:
        return _started[family].mpi
    module = sys.modules.get("mpi4py.MPI")
    return module if module is not None and _family_of(module) == family else None


def _family_of(mpi: Any) -> str:
    return "openmpi" if mpi.get_vendor()[0] == "Open MPI" else "mpich"


def unlink_shared_memory() -> None:
    """Unlink MPI's shared memory, so that no file stays in /dev/shm, even if the job is killed."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/mpich_shm_" in line}
    for path in paths:
        Path(path).unlink(missing_ok=True)


def _connect_pmi(job: BackendJob) -> dict[str, str]:
    """Connect this rank to a PMI-1 server, which ends by itself; return the environment variables for the library."""
    if job.connect_pmi is not None:
        connection = job.all_or_none(job.connect_pmi)
    else:
        name = job.from_rank_zero(lambda: start_local_server(job.size))
        connection = job.all_or_none(lambda: connect_locally(name, job.rank))
    fd = connection.detach()  # the library closes it
    _close_in_children(fd)
    return {"PMI_FD": str(fd), "PMI_RANK": str(job.rank), "PMI_SIZE": str(job.size), "MPIR_CVAR_PMI_VERSION": "1"}


def _close_in_children(fd: int) -> None:
    """Close a socket in forked children: its other end must see the end of this rank even if children still run."""
    inode = os.fstat(fd).st_ino

    def close() -> None:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:  # otherwise the library has closed it, and another file has the number
                os.close(fd)

    os.register_at_fork(after_in_child=close)


def _is_under_mpi_launcher() -> bool:
    if is_under_open_mpi():
        return True
    return launchers_fd() is None and any(name in os.environ for name in ("PMI_FD", "PMI_PORT", "PMI_RANK"))


def _is_served(job: BackendJob) -> bool:
    """Return whether all ranks have a socket to `hocket run` through which MPI can start; called by all ranks."""
    of_launcher = (os.environ.get("PMI_SIZE"), os.environ.get("PMI_RANK"))
    is_served = launchers_fd() is not None and of_launcher == (str(job.size), str(job.rank))
    return all(job.exchange("served" if is_served else ""))


def _loaded_library(family: str) -> str:
    """Return the path of the loaded MPI library of that family."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi" in line}
    found = sorted(path for path in paths if Path(path).name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so")))
    found = [path for path in found if (Path(path).name.startswith("libmpi.so.40")) == (family == "openmpi")]
    if len(found) != 1:
        raise BackendUnavailable(f"expected one loaded library of {_WORDS[family]}, found {found or 'none'}")
    return found[0]
